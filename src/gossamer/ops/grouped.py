"""Grouped convolutions: the weight of each group reads its own channels.

A weight [outputs, channels / groups, ...] has the values of one of [outputs, channels, ...] without groups, in other
columns: those of group g are moved by g times the columns of a group. A sparse weight stores nothing at the places
between, so the convolution without groups costs as many operations.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.core.join import build, values_of, wants_dense_gradient
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import entries
from gossamer.formats import CSR, PackedCSR, PackedRows, Structure
from gossamer.formats.values import placed


class _Ungrouped(NamedTuple):
    structure: Structure
    source: Tensor  # place of each entry among the values of the grouped weight
    place: Tensor  # and among those of the other one


def takes_groups(channels: int, weight: SparseTensor, groups: int) -> str | None:
    """Return None if a weight fits an input of this number of channels in these groups, else the reason why not."""
    if groups == 1:
        return None if channels == weight._dense_shape[1] else _CHANNELS
    if groups < 1 or weight._dense_shape[0] % groups or channels != weight._dense_shape[1] * groups:
        return _CHANNELS
    if torch.compiler.is_compiling():
        return "in a trace, groups is not 1"
    return "groups is not 1, and the gradient is wanted at every position" if wants_dense_gradient(weight) else None


_CHANNELS = "input and weight have different numbers of channels"


def ungrouped(weight: SparseTensor, groups: int) -> SparseTensor:
    """Return the weight of the same convolution without groups: the same values, in the columns of their group.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.from_dense(torch.tensor([[3.], [4.]]), gs.CSR())
    >>> ungrouped(w, 2).to_dense()
    tensor([[3., 0.],
            [0., 4.]])
    """
    if groups == 1:
        return weight
    found: _Ungrouped = weight.structure.cached(("ungrouped", groups), lambda: _moved(weight.structure, groups))
    values = values_of(weight).reshape(-1)[found.source]
    return build(placed(values, found.place, found.structure), found.structure)


def _moved(structure: Structure, groups: int) -> _Ungrouped:
    outputs, channels, *kernel = structure.shape
    keys, where = entries(structure)
    columns = channels * math.prod(kernel)
    row, column = keys // max(columns, 1), keys % max(columns, 1)
    group = row // max(outputs // groups, 1)
    keys, order = torch.sort((row * groups + group) * columns + column)
    source = order if where is None else where[order]
    format = PackedCSR() if isinstance(structure.format, PackedRows) else CSR()
    moved, place = Structure.from_keys(format, keys, (outputs, channels * groups, *kernel))
    return _Ungrouped(moved, source, place)
