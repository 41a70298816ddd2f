"""Structure: where the values of one tensor lie. The index arrays of a format, and what follows from them.

Index arrays are never changed once a structure is made, so tensors share them: a weight, its gradient and its optimizer
state have one structure, and "same pattern" is most often "same object".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.formats.base import Format, check_size
from gossamer.formats.levels import Level

_INT32 = 2**31 - 1


class Entries(NamedTuple):
    """The stored entries, in storage order."""

    keys: Tensor  # row-major number of each entry in the dense tensor
    where: Tensor | None  # its place in the flattened values (None: entry i is value i)


class Matrix(NamedTuple):
    """A structure seen as a compressed matrix: what kernels for products take."""

    pos: Tensor
    crd: Tensor
    rows: int  # of the tensor: its first dimension
    cols: int  # of the tensor: all others
    transposed: bool  # the arrays describe the transpose
    index: Tensor | None  # place of entry i in the flattened values (None: i)


class Structure:
    """The index arrays of one tensor in one format.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> s, place = Structure.from_keys(gs.CSR(), torch.tensor([1, 2, 7]), (2, 4))
    >>> s.arrays["pos1"], s.arrays["crd1"]
    (tensor([0, 2, 3], dtype=torch.int32), tensor([1, 2, 3], dtype=torch.int32))
    """

    def __init__(self, format: Format, shape: Sequence[int], arrays: Mapping[str, Tensor], device: torch.device) -> None:
        self.format = format
        self.shape = shape if isinstance(shape, torch.Size) else torch.Size(shape)
        self.arrays = dict(arrays)
        self.device = device
        self._entries: Entries | None = None
        self._matrix: Matrix | None = None
        self._valid: Tensor | None | bool = False  # False: not computed yet
        self._nnz: int | None = None

    @classmethod
    def from_keys(cls, format: Format, keys: Tensor, shape: Sequence[int]) -> tuple[Structure, Tensor]:
        """Store entries with these row-major numbers (ascending, each once): the structure, and each one's place."""
        sizes = format.level_sizes(shape)
        check_size(sizes, "the level sizes")
        coords = format.to_levels(unravel(keys, format.group_sizes(shape)), shape)
        number = ravel(coords, sizes)
        order: Tensor | None = None
        if number.numel() > 1 and not bool((number[1:] > number[:-1]).all()):
            order = torch.argsort(number)
            coords = [c[order] for c in coords]
        arrays: dict[str, Tensor] = {}
        place, parents = torch.zeros_like(keys), 1
        for i, (level, coord, size) in enumerate(zip(format.stack(len(shape)), coords, sizes, strict=True)):
            stored, place, parents = level.pack(place, coord, parents, size)
            arrays.update({f"{name}{i}": array for name, array in stored.items()})
        small = max(parents, keys.numel(), *sizes) <= _INT32
        arrays = {k: a if a.dtype == torch.bool or not small else a.int() for k, a in arrays.items()}
        if order is not None:
            place = torch.empty_like(place).index_copy_(0, order, place)
        return cls(format, shape, arrays, keys.device), place

    # -- the tree of levels

    def levels(self) -> list[tuple[Level, dict[str, Tensor], int, int]]:
        """Each level with its arrays, its number of parents and its size."""
        out, parents = [], 1
        sizes = self.format.level_sizes(self.shape)
        for i, (level, size) in enumerate(zip(self.format.stack(len(self.shape)), sizes, strict=True)):
            own = {name: self.arrays[f"{name}{i}"] for name in level.arrays}
            out.append((level, own, parents, size))
            parents = level.positions(own, parents, size)
        return out

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the values: the positions of the last compressed level, then an axis for each dense one below."""
        levels = self.levels()
        tail: list[int] = []
        for level, arrays, parents, size in reversed(levels):
            if not level.full:
                return (level.positions(arrays, parents, size), *tail)
            tail.insert(0, size)
        return tuple(tail)

    def entries(self) -> Entries:
        """Return the stored entries in storage order; padding is left out."""
        if self._entries is None or torch.compiler.is_compiling():
            self._entries = self._find_entries()
        return self._entries

    def _find_entries(self) -> Entries:
        coords, valid = self._positions()
        keys = ravel(coords, self.format.group_sizes(self.shape))
        if valid is None:
            return Entries(keys, None)
        where = torch.nonzero(valid).squeeze(1)
        return Entries(keys[where], where)

    def _positions(self) -> tuple[list[Tensor], Tensor | None]:
        """Coordinates of every place in the values, and which of them are real (None: all)."""
        coords: list[Tensor] = []
        valid: Tensor | None = None
        for level, arrays, parents, size in self.levels():
            parent, coord, real = level.unpack(arrays, parents, size, self.device)
            coords = [c[parent] for c in coords] + [coord]
            valid = None if valid is None else valid[parent]
            if real is not None:
                valid = real if valid is None else valid & real
        coords = self.format.from_levels(coords, self.shape)
        groups = self.format.group_sizes(self.shape)
        if check_size(self.format.level_sizes(self.shape), "the level sizes") != check_size(groups, "the shape"):
            inside = torch.stack([(c >= 0) & (c < s) for c, s in zip(coords, groups, strict=True)]).all(0)
            valid = inside if valid is None else valid & inside
        return coords, valid

    def valid(self) -> Tensor | None:
        """Which places of the values are real, in their shape; None if all are (no padding)."""
        if self._valid is False or torch.compiler.is_compiling():
            valid = self._positions()[1]
            self._valid = None if valid is None else valid.view(self.value_shape)
        assert not isinstance(self._valid, bool)
        return self._valid

    @property
    def nnz(self) -> int:
        """Number of stored entries, without padding."""
        if self._nnz is None:
            self._nnz = self.entries().keys.numel()
        return self._nnz

    def matrix(self) -> Matrix:
        """Return the structure as a compressed matrix (first dimension x all others)."""
        if self._matrix is None or torch.compiler.is_compiling():
            self._matrix = self.format.matrix(self) or _sorted_matrix(self)
        return self._matrix

    # -- comparison and checks

    def same(self, other: Structure) -> bool:
        """Do both store the same positions in the same way?"""
        if self is other:
            return True
        if self.shape != other.shape or self.device != other.device or self.format != other.format:
            return False
        pairs = [(array, other.arrays[name]) for name, array in self.arrays.items()]
        if all(a is b for a, b in pairs):
            return True
        if torch.compiler.is_compiling():
            return False  # equality of data can't be asked of a trace
        return all(a.shape == b.shape and (a.data_ptr() == b.data_ptr() or torch.equal(a, b)) for a, b in pairs)

    def check(self, values: Tensor) -> None:
        """Raise ValueError, naming the broken promise, unless arrays and values are whole."""
        check_size(self.shape, "the shape")
        check_size(self.format.level_sizes(self.shape), "the level sizes")
        stack = self.format.stack(len(self.shape))
        expected = {f"{name}{i}" for i, level in enumerate(stack) for name in level.arrays}
        if set(self.arrays) != expected:
            raise ValueError(f"{self.format}: arrays are {sorted(self.arrays)}, must be {sorted(expected)}")
        for name, array in self.arrays.items():
            if array.device != values.device:
                raise ValueError(f"{self.format}: {name} is on {array.device}, the values on {values.device}")
        parents = 1
        for i, (level, size) in enumerate(zip(stack, self.format.level_sizes(self.shape), strict=True)):
            own = {name: self.arrays[f"{name}{i}"] for name in level.arrays}
            try:
                level.check(own, parents, size)
            except ValueError as error:
                raise ValueError(f"{self.format} of shape {tuple(self.shape)}, level {i}: {error}") from None
            parents = level.positions(own, parents, size)
            check_size((parents,), "the number of positions")
        self._check_whole(values)

    def _check_whole(self, values: Tensor) -> None:
        """Promises that no level can see alone: one value a position, no entry twice, zeros in the padding."""
        if tuple(values.shape) != self.value_shape:
            raise ValueError(f"{self.format}: values are {tuple(values.shape)}, must be {self.value_shape}")
        coords, valid = self._positions()
        number = ravel(self.format.to_levels(coords, self.shape), self.format.level_sizes(self.shape))
        number = number if valid is None else number[valid]
        if number.numel() > 1 and not bool((number[1:] > number[:-1]).all()):
            raise ValueError(f"{self.format}: entries are not in ascending order, or one is there twice")
        if valid is not None and bool((values.reshape(-1)[~valid] != 0).any()):
            raise ValueError(f"{self.format}: a value outside the pattern is not zero")

    def to(self, device: torch.device) -> Structure:
        """Return the structure on another device."""
        if device == self.device:
            return self
        return Structure(self.format, self.shape, {k: a.to(device) for k, a in self.arrays.items()}, device)

    def nbytes(self) -> int:
        """Bytes of the index arrays."""
        return sum(a.numel() * a.element_size() for a in self.arrays.values())


def ravel(coords: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Row-major number of coordinates."""
    number = coords[0]
    for coord, size in zip(coords[1:], sizes[1:], strict=True):
        number = number * size + coord
    return number


def unravel(keys: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Coordinates of row-major numbers."""
    coords: list[Tensor] = []
    for size in reversed(sizes[1:]):
        coords.insert(0, keys % size if size else keys)
        keys = torch.div(keys, size, rounding_mode="floor") if size else keys
    return [keys, *coords]


def _sorted_matrix(structure: Structure) -> Matrix:
    """Compressed rows of any structure, by sorting its entries."""
    shape = structure.shape
    rows = shape[0] if len(shape) > 1 else 1
    cols = shape[1:].numel() if len(shape) > 1 else (shape[0] if shape else 1)
    keys, where = structure.entries()
    # a trace can't ask the data whether it is sorted already
    if torch.compiler.is_compiling() or not bool((keys[1:] > keys[:-1]).all()):
        order = torch.argsort(keys)
        keys, where = keys[order], order if where is None else where[order]
    bounds = torch.arange(rows + 1, device=keys.device) * cols
    pos, crd = torch.searchsorted(keys, bounds), keys % cols if cols else keys
    if max(rows, cols, keys.numel()) <= _INT32:
        pos, crd = pos.int(), crd.int()
    return Matrix(pos, crd, rows, cols, False, where)
