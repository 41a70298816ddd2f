"""Experts of mixture-of-experts models: one parameter holds the matrices of all of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from gossamer.models.modules import dense_class
from gossamer.models.weights import all_weights


def is_experts(module: nn.Module, shape: Sequence[int]) -> bool:
    """Does a weight hold one matrix an expert, [experts, ., .]? Modules of transformers 5 are called so."""
    return "Experts" in dense_class(module).__name__ and len(shape) == 3


def experts_hold_inputs_first(module: nn.Module) -> bool:
    """Are experts stored as [inputs, outputs]? Modules of transformers say so; else two shapes do.

    An expert maps the width of the model to its own and back: the outputs of `down_proj` are the inputs of the others.
    """
    said = getattr(module, "is_transposed", None)
    shapes = {name: w.shape for name, w in all_weights(module).items() if len(w.shape) == 3}
    down = shapes.pop("down_proj", None)
    if said is not None or down is None:
        return bool(said)
    others = shapes.values()
    return any(s[1] == down[2] for s in others) and all(s[2] != down[1] for s in others)


def as_rows(experts: Tensor, inputs_first: bool) -> Tensor:
    """Return the matrices of all experts below each other, [experts x outputs, inputs].

    Examples
    --------
    >>> import torch
    >>> as_rows(torch.zeros(4, 6, 8), inputs_first=True).shape
    torch.Size([32, 6])
    """
    return (experts.transpose(1, 2) if inputs_first else experts).flatten(0, 1)


def from_rows(rows: Tensor, shape: Sequence[int], inputs_first: bool) -> Tensor:
    """Return what :func:`as_rows` was made of.

    Examples
    --------
    >>> import torch
    >>> x = torch.arange(24).view(2, 3, 4)
    >>> torch.equal(from_rows(as_rows(x, True), x.shape, True), x)
    True
    """
    experts, first, second = shape
    return rows.view(experts, second, first).transpose(1, 2) if inputs_first else rows.view(experts, first, second)
