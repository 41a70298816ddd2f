"""Stacked: several matrices, each in the same format. The experts of a mixture of experts are stored like this."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.formats.base import Format, as_format
from gossamer.formats.compressed import CSR
from gossamer.formats.structure import Structure


class Stacked(Format):
    """A tensor [matrices, rows, columns] whose matrices are stored one after the other, each in the inner format.

    In levels: one ``dense`` level for the matrices above the levels of the format. So the values of a matrix are
    consecutive, and ``t[i]`` is that matrix in its format, without a copy of its values.

    Parameters
    ----------
    inner
        A format of matrices.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> experts = gs.sparsify(torch.randn(4, 32, 64), "90%", format=gs.formats.Stacked(gs.formats.PackedCSR()))
    >>> experts[2].format, experts[2].shape
    (PackedCSR(), torch.Size([32, 64]))
    """

    def __init__(self, inner: Format | type[Format] | str) -> None:
        self.inner = as_format(inner)
        if self.inner.groups(2) != 2:
            raise ValueError(f"Stacked needs a format of matrices, such as CSR(), not {self.inner}")
        super().__init__("dense", *self.inner.stack(2))
        self.any_pattern = self.inner.any_pattern

    def groups(self, ndim: int) -> int:
        return 3

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        matrices, *matrix = self.group_sizes(shape)
        return (matrices, *self.inner.level_sizes(matrix))

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        return [coords[0], *self.inner.to_levels(coords[1:], self.group_sizes(shape)[1:])]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        return [coords[0], *self.inner.from_levels(coords[1:], self.group_sizes(shape)[1:])]

    def pads(self, shape: Sequence[int]) -> bool:
        return self.inner.pads(self.group_sizes(shape)[1:])

    def general(self) -> Format:
        return CSR()

    def transposed(self) -> Format | None:
        return None

    def __repr__(self) -> str:
        return f"Stacked({self.inner})"


class Matrix(NamedTuple):
    """One matrix of a stack: the range of its values, and its structure."""

    start: int
    stop: int
    structure: Structure


def matrices(structure: Structure) -> list[Matrix] | None:
    """Return the matrices of a stack; their coordinates are views, not copies.

    None if a single matrix would be stored differently: in ELL, rows are as long as the longest of all matrices, and
    packed V:N:M has the same columns of all matrices together.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.eye(3).expand(2, 3, 3), Stacked(gs.CSR()))
    >>> [(m.start, m.stop) for m in matrices(t.structure)]
    [(0, 3), (3, 6)]
    """
    format = structure.format
    assert isinstance(format, Stacked)
    count, *shape = format.group_sizes(structure.shape)
    size = max(shape[0] * shape[1], 1)
    keys = structure.entries().keys
    if bool((torch.diff(keys // size) < 0).any()):
        return None
    keys = torch.sort(keys)[0]
    bounds = torch.searchsorted(keys, torch.arange(count + 1, device=keys.device) * size).tolist()
    parts = [
        Structure.from_keys(format.inner, keys[a:b] - i * size, shape)[0]
        for i, (a, b) in enumerate(itertools.pairwise(bounds))
    ]
    stops = list(itertools.accumulate((torch.Size(part.value_shape).numel() for part in parts), initial=0))
    if stops[-1] != torch.Size(structure.value_shape).numel():
        return None
    for name in parts[0].arrays if parts else ():
        _share(parts, name, structure.arrays[_name_in_stack(name)])
    return [Matrix(a, b, part) for (a, b), part in zip(itertools.pairwise(stops), parts, strict=True)]


def _name_in_stack(name: str) -> str:
    """Name of a level's array in the stack, where the level is one further down.

    Examples
    --------
    >>> _name_in_stack("crd1")
    'crd2'
    """
    kind = name.rstrip("0123456789")
    return f"{kind}{int(name[len(kind) :]) + 1}"


def _share(parts: list[Structure], name: str, whole: Tensor) -> None:
    """Let the arrays of matrices be views of the stack's, if that has them one after the other (offsets it hasn't)."""
    pieces = whole.split([part.arrays[name].shape[0] for part in parts]) if _adds_up(parts, name, whole) else ()
    for part, piece in zip(parts, pieces, strict=False):
        if piece.dtype == part.arrays[name].dtype:
            part.arrays[name] = piece


def _adds_up(parts: list[Structure], name: str, whole: Tensor) -> bool:
    return not name.startswith("pos") and sum(part.arrays[name].shape[0] for part in parts) == whole.shape[0]
