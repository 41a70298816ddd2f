"""The layers that a method works on: those of `gossamer.methods`, with masks and the method's own data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import methods
from gossamer.formats import Format
from gossamer.methods.survey import OTHER, Survey, survey
from gossamer.models.coverage import Left
from gossamer.models.names import Where, chosen
from gossamer.models.weights import Weight
from gossamer.patterns import Pattern
from gossamer.train.shards import become_rows, is_sharded, whole, whole_mask


@dataclass(eq=False)
class Layer(methods.Layer):
    """One matrix of weights: all of a parameter, a third of an attention's in-projection, or one expert.

    ``weight``, ``mask`` and ``grad`` are matrices [outputs, inputs]; rules read them and return a mask.
    """

    last: bool = False
    """Is it the last layer of the model?"""
    budget: int = 0
    """How many weights it keeps."""
    pattern: Pattern | None = None
    """Which positions it may keep; None: any, as many as the budget."""
    offset: int = 0
    """The place of its first weight among those of all layers."""
    grad: Tensor | None = None
    """The gradient at every position, while masks are updated."""
    rng: torch.Generator = field(default_factory=torch.Generator, repr=False)
    extra: dict[str, Any] = field(default_factory=dict, repr=False)
    """What a method remembers; part of its state."""

    @property
    def weight(self) -> Tensor:
        """The weights, zero where the mask is False."""
        return self.matrix(self.dense())

    @property
    def mask(self) -> Tensor:
        """Which weights are kept."""
        return self.matrix(mask_of(self.source))

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return int(torch.count_nonzero(self.mask))

    def dense(self) -> Tensor:
        """All values of the parameter; of a sharded one, gathered from all ranks."""
        return dense_of(self.source)

    def everything(self) -> Tensor:
        """A mask that keeps all."""
        return torch.ones(self.outputs, self.inputs, dtype=torch.bool, device=self.parameter.device)


def copied(extra: Mapping[str, Any]) -> dict[str, Any]:
    """What a method remembers of a layer, with tensors of its own: some are updated in place."""
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in extra.items()}


def mask_of(weight: Weight) -> Tensor:
    """The mask of a weight; of a masked one without a copy."""
    return whole_mask(weight.parameter) if is_sharded(weight.parameter) else weight.mask()


def dense_of(weight: Weight) -> Tensor:
    """All values of a weight; of a masked or dense one without a copy."""
    return whole(weight.parameter) if is_sharded(weight.parameter) else weight.dense()


def become(weight: Weight, values: Tensor | None, mask: Tensor, format: Format | None = None) -> None:
    """Give a weight other values (None: what it has) and another mask."""
    if is_sharded(weight.parameter):
        become_rows(weight.parameter, values, mask)
    else:
        weight.become(dense_of(weight) if values is None else values, mask, format)


def find_layers(
    model: nn.Module, where: Where = None, skip: Sequence[str] | str = (), first: bool = False, last: bool = False
) -> tuple[list[Layer], list[Left]]:
    """The layers to make sparse, in the order of the model, and the parameters that stay dense, with the reason.

    Parameters
    ----------
    model
        Any module; `gossamer.methods.survey` decides which weights can be sparse.
    where, skip
        Names to include, and names to skip.
    first, last
        Keep the first layer of the model dense, or the last.

    Examples
    --------
    >>> import torch
    >>> layers, left = find_layers(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 2)), last=True)
    >>> [layer.name for layer in layers], [one.name for one in left]
    (['0.weight'], ['0.bias', '1.bias', '1.weight'])
    """
    usual = _names(survey(model, trained=True))
    found = survey(model, where, trained=True)
    names = [*_names(found), *(one.name for one in found.left)]
    out = {name for glob in ([skip] if isinstance(skip, str) else skip) for name in chosen(names, glob)}
    out |= set(usual[:1] if first else ()) | set(usual[-1:] if last else ())
    taken = [layer for layer in found.layers if layer.parameter_name not in out]
    sizes = {layer.parameter_name: layer.source.shape.numel() for layer in found.layers}
    left = [*found.left, *(Left(name, size, OTHER) for name, size in sizes.items() if name in out)]
    return [_extended(layer, layer.name == usual[-1] if usual else False) for layer in taken], left


def _names(found: Survey) -> list[str]:
    """The parameters that are taken, each once."""
    return list(dict.fromkeys(layer.parameter_name for layer in found.layers))


def _extended(layer: methods.Layer, last: bool) -> Layer:
    known = {one.name: getattr(layer, one.name) for one in fields(methods.Layer)}
    return Layer(**known, last=last)
