"""Reading entries: the levels of a structure, the nonzeros of a dense tensor or a list of numbers, as sorted keys.

Each source has its own C (``convert.conversion``). All end in keys for the levels that entries go to,
which are then sorted by as many of those levels as the order of the source leaves open.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import LevelUse, Walk
from gossamer.compiler.convert import conversion, readers
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.run import runtime
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Level

INT32 = 2**31 - 1
C_INDEX = {torch.int32: "int", torch.int64: "long", torch.uint8: "unsigned char", torch.bool: "unsigned char"}
_DIGIT, _ONE_DIGIT = 11, 14  # bits of a digit; up to how many it is only one
_SMALL = 64  # coordinates of a dense level that may be walked before those above it
_HALF = ("unsigned short", "(*v & 0x7fff) != 0", 1)
_NUMBER = "*v != 0"
#: How values are tested for zero: their type in C, the test, and how many of it make a value.
_TESTS = {
    torch.float32: ("float", _NUMBER, 1), torch.float64: ("double", _NUMBER, 1),
    torch.float16: _HALF, torch.bfloat16: _HALF,
    torch.int8: ("signed char", _NUMBER, 1), torch.int16: ("short", _NUMBER, 1), torch.int32: ("int", _NUMBER, 1),
    torch.int64: ("long", _NUMBER, 1), torch.uint8: ("unsigned char", _NUMBER, 1),
    torch.bool: ("unsigned char", _NUMBER, 1),
    torch.complex64: ("float", "((v[0] != 0) | (v[1] != 0))", 2),
    torch.complex128: ("double", "((v[0] != 0) | (v[1] != 0))", 2),
}  # fmt: skip


class Target(NamedTuple):
    """Where entries go: levels, their sizes, which part of which dimension each counts, and the dimensions' sizes."""

    stack: tuple[Level, ...]
    sizes: tuple[int, ...]
    cuts: tuple[Cut, ...]
    dims: tuple[int, ...]

    @property
    def needed(self) -> int:
        """How many of the levels need entries in order: dense ones at the end find their places without."""
        last = len(self.stack)
        while last and self.stack[last - 1].full and not self.stack[last - 1].arrays:
            last -= 1
        return last


class Source(NamedTuple):
    """A stack of levels that is read: how it is walked, its arrays, its integers, and what each level counts."""

    walked: readers.Walked
    arrays: list[Tensor]
    known: dict[str, int]
    cuts: tuple[Cut, ...] | None  # None: entries come in no order
    dims: tuple[int, ...]
    places: int  # of the values
    whole: bool  # is every place an entry?

    @property
    def in_place(self) -> bool:
        """Is it walked as it is stored?"""
        return self.walked.order == tuple(range(len(self.walked.order)))

    def towards(self, target: Target) -> tuple[Source, int]:
        """Walk it in the order that comes nearest to a target's; returns how many of its levels must be sorted."""
        if self.cuts is None or self.dims != target.dims:
            return self, target.needed
        order, need = _nearest(self.cuts, self.walked.known, target.cuts, target.needed)
        return self._replace(walked=replace(self.walked, order=order)), need

    def grouped(self, target: Target, levels: int) -> bool:
        """Do entries with the same coordinates in the first levels of a target come together, and those in order?"""
        if self.cuts is None:
            return False
        cuts = [self.cuts[n] for n in self.walked.order]
        return conversion.unsorted_levels(cuts, target.cuts, levels) == 0


class Layout(NamedTuple):
    """How keys for a target look: where the bits of each level begin, how many they are, and the type of a key."""

    target: Target
    shifts: tuple[int, ...]
    bits: tuple[int, ...]
    key: str
    dtype: torch.dtype

    @classmethod
    @functools.lru_cache(maxsize=512)
    def of(cls, target: Target) -> Layout | None:
        """Return the layout of keys for a target; None if they don't fit into an integer.

        Examples
        --------
        >>> from gossamer.formats.levels import Compressed, Dense
        >>> Layout.of(Target((Dense(), Compressed()), (3, 100), (Cut(0), Cut(1)), (3, 100))).shifts
        (7, 0)
        """
        bits = tuple(max(size - 1, 0).bit_length() for size in target.sizes)
        if sum(bits) > 63:
            return None
        shifts = tuple(sum(bits[n + 1 :]) for n in range(len(bits)))
        return cls(target, shifts, bits, *(("int", torch.int32) if sum(bits) < 32 else ("long", torch.int64)))


class Keys(NamedTuple):
    """Entries that were read: their keys, and where each was."""

    key: Tensor  # one more than there are entries, where a reader may write in vain
    where: Tensor | None  # None: entry k was at k
    n: int
    levels: int  # by so many of the target's levels they must be sorted
    width: torch.dtype  # of the numbers of places
    group: Tensor | None = None  # of entries that were there twice: which of those left each belongs to


def read(source: Structure | Tensor, layout: Layout, numbers: bool) -> Keys | None:
    """Read the entries of a structure, the nonzeros of a dense tensor, or row-major ``numbers``; None: no C does."""
    if isinstance(source, Tensor):
        return _read_numbers(source, layout) if numbers else _read_dense(source, layout)
    if source.plain and (valid := source.valid()) is not None:
        return _read_dense(valid, layout)
    return _read_stack(source, layout)


def _read_numbers(source: Tensor, layout: Layout) -> Keys:
    target, n = layout.target, source.numel()
    index = _index(n)
    number = "int" if math.prod(target.dims) <= INT32 else "long"
    call = _reader(readers.number_reader, number, len(target.dims), target.cuts, layout.key, C_INDEX[index])
    key, where, falls = fresh(n + 1, layout.dtype), fresh(n, index), torch.zeros(1, dtype=torch.int64)
    call((source.contiguous(),), _integers(call, {"entries": n}, layout), key, where, falls)
    if bool(falls):
        return Keys(key, where, n, len(target.sizes), index)
    return Keys(key, None, n, conversion.unsorted_levels(_natural(target.dims), target.cuts, target.needed), index)


def _read_dense(values: Tensor, layout: Layout) -> Keys | None:
    if values.dtype not in _TESTS:
        return None
    target, (ctype, test, per) = layout.target, _TESTS[values.dtype]
    values, index = values.contiguous(), _index(values.numel())
    n = _count(ctype, test, per)(values.data_ptr(), values.numel())
    call = _reader(readers.dense_reader, ctype, test, per, len(target.dims), target.cuts, layout.key, C_INDEX[index])
    key, where = fresh(n + 1, layout.dtype), fresh(n + 1, index)
    sizes = {f"d{d}": size for d, size in enumerate(target.dims)}
    call((values,), _integers(call, sizes, layout), key, where, None)
    return Keys(key, where[:n], n, conversion.unsorted_levels(_natural(target.dims), target.cuts, target.needed), index)


def _read_stack(structure: Structure, layout: Layout) -> Keys | None:
    source, target = source_of(structure), layout.target
    if source is None:
        return None
    source, levels = source.towards(target)
    index = _index(source.places)
    regroup = 0 if source.dims == target.dims else len(target.dims)
    if regroup and source.cuts is not None and conversion.unsorted_levels(source.cuts, _natural(source.dims)) == 0:
        levels = conversion.unsorted_levels(_natural(target.dims), target.cuts, target.needed)  # in the order of rows
    counted = source.whole and source.in_place
    call = _reader(readers.reader, source.walked, target.cuts, regroup, layout.key, None if counted else C_INDEX[index])
    key, where = fresh(source.places + 1, layout.dtype), None if counted else fresh(source.places, index)
    n = call(source.arrays, _integers(call, source.known, layout), key, where, None)
    return Keys(key, None if where is None else where[:n], n, levels, index)  # the rest, for padding, is not written


def source_of(structure: Structure) -> Source | None:
    """Describe the levels of a structure as a source of entries; None if one of them can't be walked."""
    about = _about(structure.format, structure.shape)
    if about is None:
        return None
    stack = [(level, own, size) for level, own, _, size in structure.levels()]
    return walked(stack, *about, math.prod(structure.value_shape))


def walked(
    stack: Sequence[tuple[Level, Mapping[str, Tensor], int]],
    parts: tuple[tuple[int, int], ...],
    guards: frozenset[int],
    cuts: tuple[Cut, ...] | None,
    dims: tuple[int, ...],
    places: int,
) -> Source:
    """Describe levels, with their arrays and sizes, as a source of entries."""
    known, arrays, uses = {"places": places} | {f"d{d}": size for d, size in enumerate(dims)}, [], []
    for n, (level, own, size) in enumerate(stack):
        assert level.walk is not None
        numbers = level.numbers(own)
        known |= {f"n_{n}": size, **{f"{name}_{n}": value for name, value in numbers.items()}}
        arrays += [own[name].contiguous() for name in level.arrays]
        typed = tuple((name, C_INDEX[own[name].dtype]) for name in level.arrays)
        uses.append(LevelUse(Walk(*level.walk), "", n, typed, tuple(numbers)))
    whole = not guards and not any(use.walk.real or use.walk.kept for use in uses)
    dense = [level.full and not level.arrays for level, *_ in stack]
    inner = [0] * len(stack) if cuts is None else [cut.size for cut in cuts]  # the sizes that the format gives
    small = tuple(size if free and size <= _SMALL else 0 for size, free in zip(inner, dense, strict=True))
    if not all(use.walk.ordered for use in uses):
        cuts = None
    source = readers.Walked(tuple(uses), parts, guards, tuple(range(len(uses))), small)
    return Source(source, arrays, known, cuts, dims, places, whole)


@functools.lru_cache(maxsize=512)
def _nearest(
    source: tuple[Cut, ...], small: tuple[int, ...], target: tuple[Cut, ...], needed: int
) -> tuple[tuple[int, ...], int]:
    """The order of the source's levels that leaves fewest of the target's to be sorted by, and how many those are."""
    best, least = tuple(range(len(source))), needed + 1
    for order in conversion.orders([size > 0 for size in small]):
        need = conversion.unsorted_levels([source[n] for n in order], target, needed)
        if need < least:
            best, least = order, need
    return best, least


def _natural(dims: Sequence[int]) -> tuple[Cut, ...]:
    return tuple(Cut(d) for d in range(len(dims)))


def parts_of(format: Format, shape: Sequence[int], levels: int) -> tuple[tuple[int, int], ...] | None:
    """Ask the format's map for the dimension of each level, and its weight, by trying one step in each."""
    steps = torch.eye(levels + 1, levels, dtype=torch.int64)
    dims = format.from_levels(list(steps.unbind(1)), shape)
    parts = []
    for n in range(levels):
        moved = [(d, int(c[n]) - int(c[levels])) for d, c in enumerate(dims) if int(c[n]) != int(c[levels])]
        if len(moved) != 1 or any(int(c[levels]) for c in dims):
            return None
        parts.append(moved[0])
    return tuple(parts)


_Parts = tuple[tuple[int, int], ...]


@functools.lru_cache(maxsize=512)
def _about(
    format: Format, shape: tuple[int, ...]
) -> tuple[_Parts, frozenset[int], tuple[Cut, ...] | None, tuple[int, ...]] | None:
    """The parts of dimensions that levels count, padded dimensions, cuts, sizes; None if a level can't be walked."""
    stack, dims = format.stack(len(shape)), tuple(format.group_sizes(shape))
    parts = None if any(level.walk is None for level in stack) else parts_of(format, shape, len(stack))
    if parts is None:
        return None
    guards = frozenset(range(len(dims))) if format.pads(shape) else frozenset()
    return parts, guards, conversion.cuts(parts, format.level_sizes(shape)), dims


def _index(places: int) -> torch.dtype:
    return torch.int32 if places <= INT32 else torch.int64


class Call:
    """A C function that takes arrays and integers, then pointers."""

    def __init__(self, function: Any, names: tuple[str, ...], pointers: int) -> None:
        self.function, self.names = function, names
        function.argtypes, function.restype = [ctypes.c_void_p] * (2 + pointers), ctypes.c_long

    def __call__(self, arrays: Sequence[Tensor], integers: Any, *others: Tensor | None) -> int:
        held = (ctypes.c_void_p * max(len(arrays), 1))(*(a.data_ptr() for a in arrays))
        return self.function(held, integers, *(None if o is None else o.data_ptr() for o in others))


def _integers(call: Call, known: dict[str, int], layout: Layout) -> Any:
    known = known | {f"s{n}": shift for n, shift in enumerate(layout.shifts)}
    known |= {f"m{d}": size for d, size in enumerate(layout.target.dims)}
    return (ctypes.c_long * max(len(call.names), 1))(*(known[name] for name in call.names))


@functools.lru_cache(maxsize=512)
def _reader(write: Any, *spec: Any) -> Call:
    source, names = write(*spec)
    return Call(runtime.library(source).read, names, 3)


@functools.lru_cache(maxsize=32)
def _count(ctype: str, test: str, per: int) -> Any:
    found = runtime.library(readers.count_source(ctype, test, per)).count
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_long
    return found


# -- sorting


def in_order(entries: Keys, layout: Layout, numbers: bool) -> Keys:
    """Return entries sorted by their keys, as far as they are not; ``numbers`` may be there twice."""
    key, where, n, levels, index, _ = entries
    sort, unique, repeats = _sorter(layout.key, C_INDEX[index])
    width = sum(layout.bits[:levels])
    if width and n > 1:
        digits = 1 if width <= _ONE_DIGIT else -(-width // _DIGIT)
        digit = -(-width // digits)
        other, moved = fresh(n + 1, key.dtype), fresh(n, index)
        counts = torch.empty(digits << digit, dtype=index)
        first = fresh(n, index) if where is None else where
        pointers = [t.data_ptr() for t in (key, first, other, moved, counts)]
        second = sort(n, layout.shifts[levels - 1], digits, digit, *pointers, where is not None)
        key, where = (other, moved) if second else (key, first)
    if numbers and entries.where is not None and repeats(n, key.data_ptr()):  # it is there if they were in no order
        group = torch.empty(n, dtype=index)
        left = unique(n, key.data_ptr(), group.data_ptr())
        return Keys(key, where, left, levels, index, group)
    return Keys(key, where, n, levels, index)


@functools.lru_cache(maxsize=4)
def _sorter(key: str, index: str) -> tuple[Any, Any, Any]:
    made = runtime.library(conversion.SORT.format(key=key, index=index))
    made.sort.argtypes = [ctypes.c_long] * 4 + [ctypes.c_void_p] * 5 + [ctypes.c_long]
    made.unique.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    made.repeats.argtypes = [ctypes.c_long, ctypes.c_void_p]
    made.sort.restype = made.unique.restype = made.repeats.restype = ctypes.c_long
    return made.sort, made.unique, made.repeats
