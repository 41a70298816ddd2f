"""Reading entries: the levels of a structure, the nonzeros of a dense tensor or a list of numbers, as keys.

Each source has its own nest (``convert.readers``). All write keys for the levels that entries go to, and say by how
many of those levels the keys must still be sorted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import LevelUse, Walk
from gossamer.compiler.convert import conversion, readers
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import C_INDEX, INT32, Layout, Target
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.sorting import Keys
from gossamer.compiler.loops.nest import Nest
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Level

_SMALL = 64  # coordinates of a dense level that may be walked before those above it
#: How values are looked at: the type in C of their numbers, and a 2 if each has two.
_VALUES = {
    torch.float32: "float", torch.float64: "double", torch.float16: "half", torch.bfloat16: "half",
    torch.int8: "signed char", torch.int16: "short", torch.int32: "int", torch.int64: "long",
    torch.uint8: "unsigned char", torch.bool: "unsigned char", torch.complex64: "float 2", torch.complex128: "double 2",
}  # fmt: skip


class Source(NamedTuple):
    """A stack of levels that is read: how it is walked, its arrays and integers by name, and what each level counts."""

    walked: readers.Walked
    arrays: dict[str, Tensor]
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
    passes, key = _passes(readers.number_reader, len(target.dims), target.cuts, layout.key), fresh(n + 1, layout.dtype)
    if passes.run("read", {"numbers": source.contiguous(), "key": key}, layout.integers | {"n": n}):
        return Keys(key, None, n, len(target.sizes), index, repeats=True)
    return Keys(key, None, n, conversion.unsorted_levels(_natural(target.dims), target.cuts, target.needed), index)


def _read_dense(values: Tensor, layout: Layout) -> Keys | None:
    if values.dtype not in _VALUES:
        return None
    target, ctype = layout.target, _VALUES[values.dtype]
    values, index = values.contiguous(), _index(values.numel())
    n = _passes(readers.counter, ctype).run("read", {"values": values}, {"places": values.numel()})
    passes = _passes(readers.dense_reader, ctype, len(target.dims), target.cuts, layout.key, C_INDEX[index])
    key, where = fresh(n + 1, layout.dtype), fresh(n + 1, index)
    passes.run("read", {"values": values, "key": key, "where": where}, layout.integers)
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
    given = None if counted else C_INDEX[index]
    passes = _passes(readers.reader, source.walked, target.cuts, regroup, layout.key, given)
    key, where = fresh(source.places + 1, layout.dtype), None if counted else fresh(source.places, index)
    n = passes.run("read", source.arrays | {"key": key, "where": where}, source.known | layout.integers)
    return Keys(key, None if where is None else where[:n], n, levels, index)  # the rest, for padding, is not written


@functools.lru_cache(maxsize=512)
def _passes(write: Callable[..., Nest], *spec: Any) -> Passes:
    return Passes({"read": write(*spec)})


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
    known = {"A.places": places} | {f"A.dim{d}": size for d, size in enumerate(dims)}
    arrays: dict[str, Tensor] = {}
    uses = []
    for n, (level, own, size) in enumerate(stack):
        assert level.walk is not None
        numbers = level.numbers(own)
        known |= {f"A.size{n}": size, **{f"A.{name}{n}": value for name, value in numbers.items()}}
        arrays |= {f"A.{name}{n}": own[name].contiguous() for name in level.arrays}
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
