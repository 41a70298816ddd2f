"""Conversions without a sort: entries are stored as the source is walked, where the order of the two allows it.

:func:`stream` decides. It walks the source in the order that is nearest to the target's. If that leaves nothing open,
entries are stored one after another. If only entries of different parents are mixed, each parent counts its own. If the
target has no place for each parent (compressed above compressed), that is done into dense levels above a compressed
one, and from there, in order, into the target. Anything else is sorted (:mod:`gossamer.ops.reading`).
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import readers, runtime, streams, writers
from gossamer.compiler.conversion import Cut
from gossamer.formats.levels import Compressed, Dense
from gossamer.ops.memory import fresh
from gossamer.ops.moves import moved
from gossamer.ops.reading import INT32, Layout, Source, walked
from gossamer.ops.writing import Made, Restacked, compact, fits, parts_of_target, prepared

_ROOM = 4096  # parents that may be counted for however few entries


def stream(source: Source, layout: Layout, values: Tensor | None) -> Restacked | None:
    """Store the entries of a source in a target, with its ``values`` if they are given; None: they must be sorted."""
    target = layout.target
    if source.dims != target.dims or source.places > INT32 or not fits(source.places, target):
        return None
    source, unsorted = source.towards(target)
    if unsorted == 0:
        return _stored(source, layout, False, values)
    if unsorted == target.needed:
        return None  # the coordinates of the last level are in no order
    above = parts_of_target(target, torch.int32)[: target.needed - 1]
    if all(part.counts != "coordinates" and "rank" not in part.at for part in above):
        return _stored(source, layout, True, values)
    if target.needed < len(target.stack) or math.prod(target.sizes[:-1]) > 4 * source.places + _ROOM:
        return None
    return _through(source, layout, values)


def _through(source: Source, layout: Layout, values: Tensor | None) -> Restacked | None:
    """By way of dense levels above a compressed one."""
    target = layout.target
    stack = (*(Dense(),) * (len(target.stack) - 1), Compressed())
    between = layout._replace(target=target._replace(stack=stack))
    first = _stored(source, between, True, values)
    if first is None:
        return None
    own = ({name: first.arrays[f"{name}{m}"] for name in level.arrays} for m, level in enumerate(stack))
    levels = list(zip(stack, own, target.sizes, strict=True))
    dims = tuple((cut.dim, cut.weight) for cut in target.cuts)
    in_order = walked(levels, dims, frozenset(), target.cuts, target.dims, first.entries)
    second = _stored(in_order, layout, False, None)
    if second is None or values is None or second.place is None:
        return None if second is None else second._replace(where=first.where, values=first.values)
    assert first.values is not None
    return second._replace(values=moved(first.values, None, second.place, second.entries, second.places))


def _stored(source: Source, layout: Layout, apart: bool, values: Tensor | None) -> Restacked | None:
    """Walk the source, once for each level that counts, and once to store; ``apart``: each parent counts its own."""
    target, fibre = layout.target, layout.target.needed - 1
    parts = parts_of_target(target, torch.int32)
    calls = _compiled(source.walked, parts, target.cuts, apart, layout.key, _value(values))
    read_from = (ctypes.c_void_p * max(len(source.arrays), 1))(*(a.data_ptr() for a in source.arrays))
    entries = source.places if source.whole else -1

    def run(name: str, made: Made, ranks: Tensor | None, *others: Tensor | None) -> int:
        integers = made._replace(known=made.known | source.known).integers(calls.names)
        seen = None if ranks is None or writers.lone(parts) else torch.zeros_like(ranks)
        held = [None if t is None else t.data_ptr() for t in (ranks, seen, *others)]
        held += [None] * (7 - len(held))
        return calls.functions[name](read_from, integers, made.pointers(parts), *held)

    def count(m: int, counts: Tensor, made: Made) -> None:
        nonlocal entries
        ranks = torch.zeros(made.places, dtype=torch.int32) if apart and m == fibre else None
        entries = run(f"count{m}", made, ranks, counts)

    def total() -> int:
        nonlocal entries
        if entries < 0:
            entries = run("count", Made({}, {}, [], 1), None)
        return entries

    made = prepared(layout, parts, torch.int32, count, total)
    if made.places > INT32:
        return None  # so many places of padding need wider integers
    n, where, place, to = total(), None, None, None
    as_they_are = compact(target, made.places, n)
    if values is not None:
        to = fresh(made.places, values.dtype, zero=not as_they_are)
    else:
        place = None if as_they_are else fresh(n, torch.int32)
        if apart or not (source.whole and source.in_place):
            where = fresh(n, torch.int32)
    ranks = None
    if apart:
        first = made.arrays[f"pos{fibre}"] if writers.starts(parts[fibre]) else None
        ranks = torch.zeros(made.above[fibre], dtype=torch.int32) if first is None else first.clone()
    run("store", made, ranks, None, values, to, where, place)
    return Restacked(made.kept(target), where, place, None, n, made.places, to)


class _Calls(NamedTuple):
    functions: dict[str, Any]
    names: tuple[str, ...]  # of the integers that they take


@functools.lru_cache(maxsize=256)
def _compiled(
    source: readers.Walked, parts: tuple[writers.Part, ...], target: tuple[Cut, ...], apart: bool, key: str, value: str
) -> _Calls:
    text, names = streams.stream(source, parts, target, apart, key, value)
    made = runtime.library(text)
    functions = {}
    for name in ("count", *(f"count{m}" for m, part in enumerate(parts) if part.counts), "store"):
        functions[name] = getattr(made, name)
        functions[name].argtypes, functions[name].restype = [ctypes.c_void_p] * 10, ctypes.c_long
    return _Calls(functions, names)


def _value(values: Tensor | None) -> str:
    """The type in C of what is as wide as a value."""
    if values is None:
        return ""
    wide = {1: "char", 2: "short", 4: "int", 8: "long"}
    return wide.get(values.element_size(), f"struct {{ long part[{values.element_size() // 8}]; }}")
