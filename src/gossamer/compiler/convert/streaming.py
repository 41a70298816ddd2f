"""Conversions without a sort: entries are stored as the source is walked, where the order of the two allows it.

:func:`stream` decides. It walks the source in the order that is nearest to the target's. If that leaves nothing open,
entries are stored one after another. If only entries of different parents are mixed, each parent counts its own. If the
target has no place for each parent (compressed above compressed), that is done into dense levels above a compressed
one, and from there, in order, into the target. Anything else is sorted (``convert.reading``).
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gossamer.compiler.convert import readers, streams, writers
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import INT32, Layout
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.moves import moved, value_type
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.reading import Source, walked
from gossamer.compiler.convert.writing import Made, Restacked, compact, fits, parts_of_target, passes, prepared
from gossamer.formats.levels import Compressed, Dense

_ROOM = 4096  # parents that may be counted for however few entries
_PASSES = 2  # walks to count: from three on, keys that are made once are cheaper


def stream(source: Source, layout: Layout, values: Tensor | None) -> Restacked | None:
    """Store the entries of a source in a target, with its ``values`` if they are given; None: they must be sorted."""
    target, fibre = layout.target, layout.target.needed - 1
    if source.dims != target.dims or source.places > INT32 or not fits(source.places, target):
        return None
    parts = parts_of_target(target, torch.int32)
    if passes(parts) > _PASSES:
        return None
    source, unsorted = source.towards(target)
    if unsorted == 0:
        return _stored(source, layout, "in order", values)
    placed, room = math.prod(target.sizes[:fibre]), source.places + _ROOM
    if all(part.counts != "coordinates" and "rank" not in part.at for part in parts[:fibre]):
        if unsorted <= fibre:
            return _stored(source, layout, "apart", values)
        if source.grouped(target, fibre) and placed * target.sizes[fibre] // 64 <= room:
            return _stored(source, layout, "together", values)
    elif unsorted <= fibre and target.needed == len(target.stack) and placed <= room:
        return _through(source, layout, values)
    return None


def _through(source: Source, layout: Layout, values: Tensor | None) -> Restacked | None:
    """By way of dense levels above a compressed one."""
    target = layout.target
    stack = (*(Dense(),) * (len(target.stack) - 1), Compressed())
    between = layout._replace(target=target._replace(stack=stack))
    first = _stored(source, between, "apart", values)
    if first is None:
        return None
    own = ({name: first.arrays[f"{name}{m}"] for name in level.arrays} for m, level in enumerate(stack))
    levels = list(zip(stack, own, target.sizes, strict=True))
    dims = tuple((cut.dim, cut.weight) for cut in target.cuts)
    in_order = walked(levels, dims, frozenset(), target.cuts, target.dims, first.entries)
    second = _stored(in_order, layout, "in order", None)
    if second is None or values is None or second.place is None:
        return None if second is None else second._replace(where=first.where, values=first.values)
    assert first.values is not None
    return second._replace(values=moved(first.values, None, second.place, second.entries, second.places))


def _stored(source: Source, layout: Layout, mode: str, values: Tensor | None) -> Restacked | None:
    """Walk the source, once for each level that counts, and once to store."""
    target, fibre = layout.target, layout.target.needed - 1
    parts = parts_of_target(target, torch.int32)
    value = "" if values is None else value_type(values.element_size())
    passes = _passes(source.walked, parts, target.cuts, mode, layout.key, value)
    entries, shared = source.places if source.whole else -1, not writers.lone(parts)
    kept: dict[str, Tensor | None] = {}  # what a count leaves for the store
    if mode == "together":
        kept["found"] = fresh(source.places, torch.int32)

    def run(name: str, made: Made, **given: Tensor | None) -> int:
        flags = {f"{x}.given": given.get(x) is not None for x in ("where", "place")}
        return passes.run(name, source.arrays | made.arrays | kept | given, source.known | made.known | flags)

    def count(m: int, counts: Tensor, made: Made) -> None:
        nonlocal entries
        seen = torch.zeros(made.places, dtype=torch.int32) if mode == "apart" and m == fibre and shared else None
        entries = run(f"count{m}", made, out=counts, seen=seen)
        if mode == "together" and m == fibre:
            kept["out"] = counts

    def total() -> int:
        nonlocal entries
        if entries < 0:
            entries = run("count", Made({}, {}, [], 1))
        return entries

    made = prepared(layout, parts, torch.int32, count, total)
    if made.places > INT32:
        return None  # this much padding needs wider integers
    n, where, place, to = total(), None, None, None
    if values is not None:
        to = fresh(made.places, values.dtype, zero=made.places != n)
    else:
        place = None if compact(target, made.places, n) else fresh(n, torch.int32)
        if mode != "in order" or not (source.whole and source.in_place):
            where = fresh(n, torch.int32)
    scratch: dict[str, Tensor | None] = {}
    if mode == "apart":
        none = torch.zeros(made.above[fibre], dtype=torch.int32)
        first = made.arrays[f"B.pos{fibre}"].clone() if writers.starts(parts[fibre]) else none
        scratch = {"ranks": first, "seen": torch.zeros_like(none) if shared else None}
    elif mode == "together":
        scratch = {"seen": torch.empty(target.sizes[fibre], dtype=torch.int32)}
    run("store", made, **{"from": values}, to=to, where=where, place=place, **scratch)
    return Restacked(made.kept(target), where, place, None, n, made.places, to)


@functools.lru_cache(maxsize=256)
def _passes(
    source: readers.Walked, parts: tuple[writers.Part, ...], target: tuple[Cut, ...], mode: str, key: str, value: str
) -> Passes:
    return Passes(streams.stream(source, parts, target, mode, key, value))
