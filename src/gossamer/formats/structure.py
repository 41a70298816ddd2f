"""Structure: the index arrays of a tensor in its format, and what is derived from them.

Index arrays never change, so tensors share them: a weight, its gradient and its optimizer state have one structure, and
"same pattern" usually means "same object".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.formats import checks
from gossamer.formats.base import Format, check_size
from gossamer.formats.equality import equal
from gossamer.formats.keys import ascending, ravel, unravel
from gossamer.formats.levels import Bitmap, Compressed, Dense, Level, Singleton
from gossamer.formats.memo import Memo

INT32 = 2**31 - 1
_LEAST_KEPT, _TIMES_KEPT = 1 << 24, 8  # limit of its cache: these bytes, plus this many times its own
_WHOLE = (Dense, Compressed, Singleton)  # levels without padding


class Entries(NamedTuple):
    """The stored entries, in storage order."""

    keys: Tensor  # row-major number of each entry in the dense tensor
    where: Tensor | None  # its place in the flattened values (None: entry i is value i)


class Matrix(NamedTuple):
    """A structure as a compressed matrix, for kernels that compute products."""

    pos: Tensor
    crd: Tensor
    rows: int  # of the tensor: its first dimension
    cols: int  # of the tensor: all others
    transposed: bool  # the arrays describe the transpose
    index: Tensor | None  # type: ignore[assignment]  # place of entry i in the flattened values (None: i)


class Structure:
    """The index arrays of one tensor in one format.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> s, place = Structure.from_keys(gs.CSR(), torch.tensor([1, 2, 7]), (2, 4))
    >>> s.arrays["pos1"], s.arrays["crd1"]
    (tensor([0, 2, 3], dtype=torch.int32), tensor([1, 2, 3], dtype=torch.int32))
    """

    def __init__(
        self, format: Format, shape: Sequence[int], arrays: Mapping[str, Tensor], device: torch.device
    ) -> None:
        self.format = format
        self.shape = shape if isinstance(shape, torch.Size) else torch.Size(shape)
        self.arrays = dict(arrays)
        self.device = device
        self._levels: list[tuple[Level, dict[str, Tensor], int, int]] | None = None
        self._value_shape: tuple[int, ...] | None = None
        self._plain: bool | None = None
        self._entries: Entries | None = None
        self._matrix: Matrix | None = None
        self._valid: Tensor | None | bool = False  # False: not computed yet
        self._nnz: int | None = None
        self._memo: Memo | None = None
        #: What the next F.linear with a tensor of this structure calls first; kept by :mod:`gossamer.core.dispatch`.
        self.ready: Any = None

    @classmethod
    def from_keys(cls, format: Format, keys: Tensor, shape: Sequence[int]) -> tuple[Structure, Tensor]:
        """Store entries with these row-major numbers (ascending, without duplicates); return the structure and each
        entry's place."""
        sizes = format.level_sizes(shape)
        check_size(sizes, "the level sizes")
        coords = format.to_levels(unravel(keys, format.group_sizes(shape)), shape)
        number = ravel(coords, sizes)
        order: Tensor | None = None
        if not ascending(number):
            order = torch.argsort(number)
            coords, number = [c[order] for c in coords], number[order]
        arrays, place = pack(format.stack(len(shape)), coords, number, sizes)
        if order is not None:
            place = torch.empty_like(place).index_copy_(0, order, place)
        return cls(format, shape, arrays, keys.device), place

    @classmethod
    def from_numbers(cls, format: Format, number: Tensor, shape: Sequence[int]) -> Structure:
        """Store entries with these numbers in the levels (ascending, without duplicates): entry i will be value i.

        For formats without padding that only order the dimensions; the compiler writes entries in that order.
        """
        sizes = format.level_sizes(shape)
        arrays, _ = pack(format.stack(len(shape)), unravel(number, sizes), number, sizes)
        return cls(format, shape, arrays, number.device)

    # -- the tree of levels

    def levels(self) -> list[tuple[Level, dict[str, Tensor], int, int]]:
        """Each level with its arrays, its number of parents and its size."""
        if self._levels is not None and not torch.compiler.is_compiling():
            return self._levels
        out, parents = [], 1
        sizes = self.format.level_sizes(self.shape)
        for i, (level, size) in enumerate(zip(self.format.stack(len(self.shape)), sizes, strict=True)):
            own = {name: self.arrays[f"{name}{i}"] for name in level.arrays}
            out.append((level, own, parents, size))
            parents = level.positions(own, parents, size)
        self._levels = out
        return out

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of the values: the positions of the last compressed level, then an axis for each dense one below."""
        if self._value_shape is None or torch.compiler.is_compiling():
            axes: tuple[int, ...] = ()
            for level, arrays, parents, size in self.levels():
                axes = (*axes, size) if level.full else (level.positions(arrays, parents, size),)
            self._value_shape = axes
        return self._value_shape

    @property
    def plain(self) -> bool:
        """Are the values a dense tensor, with a place for every position (Masked)?"""
        if self._plain is None:
            natural = self.format.order is None and not self.format.own_map
            self._plain = natural and all(level.full for level in self.format.stack(len(self.shape)))
        return self._plain

    def entries(self) -> Entries:
        """Return the stored entries in storage order, without padding."""
        if self._entries is None or torch.compiler.is_compiling():
            self._entries = self._find_entries()
        return self._entries

    def _find_entries(self) -> Entries:
        if self.plain:
            valid = self.valid()
            keys = torch.arange(self.shape.numel(), device=self.device) if valid is None else _true(valid)
            return Entries(keys, None if valid is None else keys)
        coords, valid = self.positions()
        keys = ravel(self.format.from_levels(coords, self.shape), self.format.group_sizes(self.shape))
        if valid is None:
            return Entries(keys, None)
        where = _true(valid)
        return Entries(keys[where], where)

    def positions(self) -> tuple[list[Tensor], Tensor | None]:
        """Coordinates, in the levels, of every place of the values; and which places are real (None: all)."""
        coords: list[Tensor] = []
        valid: Tensor | None = None
        for level, arrays, parents, size in self.levels():
            parent, coord, real = level.unpack(arrays, parents, size, self.device)
            coords = [c[parent] for c in coords] + [coord]
            valid = None if valid is None else valid[parent]
            if real is not None:
                valid = real if valid is None else valid & real
        if self.format.pads(self.shape):
            dims = zip(self.format.from_levels(coords, self.shape), self.format.group_sizes(self.shape), strict=True)
            for coord, size in dims:
                inside = (coord >= 0) & (coord < size)
                valid = inside if valid is None else valid & inside
        return coords, valid

    def valid(self) -> Tensor | None:
        """Which places of the values are real, in their shape; None if all are (no padding)."""
        if self._valid is False or torch.compiler.is_compiling():
            self._valid = self._find_valid()
        assert not isinstance(self._valid, bool)
        return self._valid

    def _find_valid(self) -> Tensor | None:
        if not self.format.pads(self.shape) and all(type(level) in _WHOLE for level, *_ in self.levels()):
            return None
        *outer, (last, arrays, *_) = self.levels()
        if self.plain and type(last) is Bitmap and all(type(level) is Dense for level, *_ in outer):
            return arrays["mask"].reshape(self.value_shape)
        valid = self.positions()[1]
        return None if valid is None else valid.reshape(self.value_shape)

    @property
    def nnz(self) -> int:
        """Number of stored entries, without padding."""
        if self._nnz is None:
            valid = self.valid()
            self._nnz = torch.Size(self.value_shape).numel() if valid is None else int(valid.sum())
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
        if self.shape != other.shape or self.device != other.device:
            return False
        if self.format is not other.format and self.format != other.format:
            return False
        pairs = [(array, other.arrays[name]) for name, array in self.arrays.items()]
        if all(a is b for a, b in pairs):
            return True
        if torch.compiler.is_compiling():
            return False  # a trace can't compare data
        return all(equal(a, b) for a, b in pairs)

    def check(self, values: Tensor) -> None:
        """Raise ValueError, naming the broken rule, unless arrays and values are valid."""
        checks.check(self, values)

    def to(self, device: torch.device) -> Structure:
        """Return the structure on another device."""
        if device == self.device:
            return self
        return Structure(self.format, self.shape, {k: a.to(device) for k, a in self.arrays.items()}, device)

    def places(self) -> tuple[Tensor, Tensor | None]:
        """Row-major number of every place of the values (0 for padding), and which are real; the sizes are known in a
        trace."""
        coords, valid = self.positions()
        keys = ravel(self.format.from_levels(coords, self.shape), self.format.group_sizes(self.shape))
        return keys if valid is None else keys.masked_fill(~valid, 0), valid

    def nbytes(self) -> int:
        """Bytes of the index arrays."""
        return sum(a.numel() * a.element_size() for a in self.arrays.values())

    def cached(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """Return something derived from this structure alone (a view, indices of its entries): computed once, then
        cached.

        The cache is limited to a few times the bytes of the structure; other values are dropped and computed again.

        Examples
        --------
        >>> import torch, gossamer as gs
        >>> s = gs.from_dense(torch.eye(3), gs.CSR()).structure
        >>> s.cached("double", lambda: 2 * s.nnz)
        6
        """
        return self.memo.cached(key, make)

    @property
    def memo(self) -> Memo:
        """The cache of this structure."""
        if self._memo is None:
            self._memo = Memo(_LEAST_KEPT + _TIMES_KEPT * self.nbytes())
        return self._memo


def _true(mask: Tensor) -> Tensor:
    return torch.nonzero(mask.reshape(-1)).squeeze(1)


def pack(
    stack: Sequence[Level], coords: Sequence[Tensor], number: Tensor, sizes: Sequence[int]
) -> tuple[dict[str, Tensor], Tensor]:
    """Store entries sorted by number; return the arrays of all levels (int32 if that is enough) and the place of each
    entry."""
    arrays, place, positions = _pack(stack, coords, number, sizes)
    small = max(positions, number.numel(), *sizes) <= INT32
    return {k: a.int() if small and a.dtype == torch.int64 else a for k, a in arrays.items()}, place


def _pack(
    stack: Sequence[Level], coords: Sequence[Tensor], number: Tensor, sizes: Sequence[int]
) -> tuple[dict[str, Tensor], Tensor, int]:
    """Store entries sorted by number: the arrays of all levels, the place of each entry, the number of places.

    Dense levels at the end store whole fibres, so the levels above them see each fibre once.
    """
    split = len(stack)
    while split and stack[split - 1].full and not stack[split - 1].arrays:
        split -= 1
    inner = math.prod(sizes[split:])
    outer, fibre = list(coords[:split]), None
    if split < len(stack) and inner:
        start = torch.div(number, inner, rounding_mode="floor")
        new = torch.ones_like(start, dtype=torch.bool)
        new[1:] = start[1:] != start[:-1]
        outer, fibre, number = [c[new] for c in outer], torch.cumsum(new, 0) - 1, number - start * inner
    place, positions = torch.zeros_like(outer[0] if outer else coords[0][:1]), 1
    arrays: dict[str, Tensor] = {}
    back: Tensor | None = None  # where each entry is now, once an unordered level has moved them
    for i, (level, size) in enumerate(zip(stack[:split], sizes, strict=False)):
        level.check_sizes(positions, size)
        if i and not stack[i - 1].ordered and bool((place[1:] < place[:-1]).any()):  # parents must come in order
            order = torch.argsort(place, stable=True)
            place, outer = place[order], [c[order] for c in outer]
            back = order if back is None else back[order]
        stored, place, positions = level.pack(place, outer[i], positions, size)
        arrays.update({f"{name}{i}": array for name, array in stored.items()})
    if back is not None:
        place = torch.empty_like(place).index_copy_(0, back, place)
    return arrays, place if fibre is None else place[fibre] * inner + number, positions * inner


def matrix_sizes(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor seen as a matrix: its first dimension, and all others; a vector is one row."""
    return (shape[0], math.prod(shape[1:])) if len(shape) > 1 else (1, math.prod(shape))


def whole_matrix(structure: Structure) -> Matrix:
    """Every position of a structure whose values have the dense order, as compressed rows."""
    rows, cols = matrix_sizes(structure.shape)
    dtype = torch.int32 if max(rows, cols, rows * cols) <= INT32 else torch.int64
    pos = torch.arange(rows + 1, dtype=dtype, device=structure.device) * cols
    crd = torch.arange(cols, dtype=dtype, device=structure.device).expand(rows, cols).reshape(-1)
    return Matrix(pos, crd, rows, cols, False, None)


def _sorted_matrix(structure: Structure) -> Matrix:
    """Compressed rows of any structure, by sorting its entries."""
    rows, cols = matrix_sizes(structure.shape)
    keys, where = structure.entries()
    # a trace can't check whether the data is sorted
    if torch.compiler.is_compiling() or not ascending(keys):
        order = torch.argsort(keys)
        keys, where = keys[order], order if where is None else where[order]
    bounds = torch.arange(rows + 1, device=keys.device) * cols
    pos, crd = torch.searchsorted(keys, bounds), keys % cols if cols else keys
    if max(rows, cols, math.prod(structure.value_shape)) <= INT32:
        pos, crd = pos.int(), crd.int()
    return Matrix(pos, crd, rows, cols, False, where)
