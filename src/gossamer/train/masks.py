"""Masks of layers, written to the weights that the layers are parts of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gossamer.formats import Format
from gossamer.models.weights import Weight
from gossamer.train import checks
from gossamer.train.layers import Layer, become, dense_of, mask_of


def sow(
    layers: Sequence[Layer],
    masks: Sequence[Tensor],
    init: str | None,
    rng: torch.Generator,
    format_of: Callable[[Tensor], Format],
) -> list[Weight]:
    """Give dense weights their first masks and values; the weights that have changed.

    Parameters
    ----------
    layers, masks
        One mask [outputs, inputs] a layer.
    init, rng
        How first values are made; see :func:`gossamer.train.checks.initial`.
    format_of
        The format of a parameter.
    """
    found: dict[int, tuple[Weight, Tensor, Tensor]] = {}
    for layer, mask in zip(layers, masks, strict=True):
        if id(layer.source) not in found:
            values = dense_of(layer.source).clone()
            found[id(layer.source)] = layer.source, values, torch.zeros_like(values, dtype=torch.bool)
        _, values, whole = found[id(layer.source)]
        layer.put(whole, mask)
        gain = 1.0 if layer.last or layer.part is not None else 2.0  # no ReLU after a classifier or a projection
        layer.put(values, checks.initial(layer.matrix(values), mask, init, rng, gain))
    for weight, values, whole in found.values():
        become(weight, values, whole, format_of(weight.parameter))
    return [weight for weight, _, _ in found.values()]


def change(layers: Sequence[Layer], masks: Sequence[Tensor | None]) -> list[tuple[Weight, Tensor]]:
    """Give weights other masks, where one is given; the weights that have changed, and where they have grown."""
    wanted: dict[int, tuple[Weight, Tensor]] = {}
    for layer, mask in zip(layers, masks, strict=True):
        if mask is not None:
            if id(layer.source) not in wanted:
                wanted[id(layer.source)] = layer.source, mask_of(layer.source).clone()
            layer.put(wanted[id(layer.source)][1], mask)
    changed = []
    for weight, whole in wanted.values():
        grown = whole & ~mask_of(weight)
        become(weight, None, whole)
        changed.append((weight, grown))
    return changed
