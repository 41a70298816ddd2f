"""Layers whose weight is an :class:`~gossamer.Opaque`: a module in the place of the parameter."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from gossamer.core.opaque import Opaque
from gossamer.models.modules import held_by, release
from gossamer.models.weights import all_weights


def hold_(module: nn.Module, weight: Opaque, name: str = "weight") -> nn.Module:
    """Give a layer a weight of your own class, in place; return the layer.

    The layer's old weight is discarded, so create the optimizer afterwards.

    Parameters
    ----------
    module
        Any layer that reads its weight as ``self.weight``.
    weight
        A weight of the same shape.
    name
        Name of the weight in the layer.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> class Scaled(gs.Opaque):
    ...     def __init__(self, dense):
    ...         super().__init__(dense.shape)
    ...         self.scale = torch.nn.Parameter(dense.abs().amax(1, keepdim=True).detach() / 127)
    ...         self.register_buffer("codes", (dense / self.scale).round().to(torch.int8))
    ...
    ...     def to_dense(self):
    ...         return self.codes * self.scale
    >>> layer = torch.nn.Linear(8, 4)
    >>> gs.summary(gs.nn.hold_(layer, Scaled(layer.weight))).rows[1].format
    'Scaled'
    """
    if not isinstance(weight, Opaque):
        raise TypeError(f"hold_ takes a gs.Opaque, not {type(weight).__name__}: for SparseTensors use gs.sparsify_")
    known = getattr(module, name, None)
    if not isinstance(known, (torch.Tensor, Opaque)):
        raise ValueError(f"{type(module).__name__} has no weight {name!r}")
    if known.shape != weight.shape:
        raise ValueError(
            f"{name} of {type(module).__name__} has the shape {tuple(known.shape)}, and the {type(weight).__name__} "
            f"that is to replace it {tuple(weight.shape)}"
        )
    if held_by(module).get(name) is not None:
        release(module, name)
    delattr(module, name)
    module.add_module(name, weight)
    return module


def opaque_weights(model: nn.Module) -> Iterator[tuple[nn.Module, str, Opaque]]:
    """Return the layers of a model that hold an opaque weight, the weight's name, and the weight."""
    for _, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Opaque):
                yield module, name, child


@torch.no_grad()
def release_opaque(module: nn.Module, name: str, weight: Opaque) -> None:
    """Give a layer the dense tensor that its weight stands for, as a parameter."""
    dense = nn.Parameter(weight.to_dense().clone(), weight.requires_grad)
    delattr(module, name)
    module.register_parameter(name, dense)


def names_of_parts(model: nn.Module) -> dict[str, tuple[str, Opaque]]:
    """Return the parameters that are parts of opaque weights: to the name of the weight, and the weight."""
    known = {id(weight): weight for _, _, weight in opaque_weights(model)}
    paths = {path: known[id(m)] for path, m in model.named_modules() if id(m) in known}
    return {
        name: (path, weight)
        for name in all_weights(model)
        for path, weight in paths.items()
        if name.startswith(f"{path}.")
    }
