"""Arrays for entries that are written: counted level by level, then made, whatever the entries come from."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.convert import writers
from gossamer.compiler.convert.layout import C_INDEX, INT32, Layout, Target
from gossamer.compiler.convert.memory import in_large_pages
from gossamer.formats.levels import Level


class Restacked(NamedTuple):
    """What came of it: the arrays, where each entry was and is in the values, and how many there are."""

    arrays: dict[str, Tensor]
    where: Tensor | None  # None: entry k was at k
    place: Tensor | None  # None: entry k is at k
    group: Tensor | None  # where some numbers were there twice: which of the entries left each belongs to
    entries: int
    places: int  # of the values
    values: Tensor | None = None  # where they came along


class Made(NamedTuple):
    """What is made so far: arrays and integers by their names in nests, each level's parents, places in all."""

    arrays: dict[str, Tensor]
    known: dict[str, int]
    above: list[int]
    places: int

    def kept(self, target: Target) -> dict[str, Tensor]:
        """Return the arrays that stay, once they are written and what was written is found to keep its promises."""
        found: dict[str, Tensor] = {}
        for m, (level, size) in enumerate(zip(target.stack, target.sizes, strict=True)):
            own = {name: self.arrays[f"B.{name}{m}"] for name in level.arrays}
            level.stored(own, self.above[m], size)
            found |= {f"{name}{m}": array for name, array in own.items()}
        return found


def prepared(
    layout: Layout,
    parts: Sequence[writers.Part],
    dtype: torch.dtype,
    count: Callable[[int, Tensor, Made], None],
    entries: Callable[[], int],
) -> Made:
    """Make the arrays of a target: ``count`` is asked to count for a level, ``entries`` how many there are."""
    target = layout.target
    made = Made({}, layout.integers, [], 1)
    for m, (level, size, part) in enumerate(zip(target.stack, target.sizes, parts, strict=True)):
        parents, counts = made.places, torch.zeros(0, dtype=dtype)
        level.check_sizes(parents, size)
        if part.counts and one_each(parts, m):
            counts = torch.full((1,), entries() if m == 0 else 1, dtype=dtype).expand(parents)
        elif part.counts:
            counts = torch.zeros(parents * (size if part.counts == "entries" else 1), dtype=dtype)
            count(m, counts, made)
        own = level.prepare(counts, parents, size, dtype)
        made.known.update({f"B.{name}{m}": value for name, value in level.numbers(own).items()})
        made.arrays.update({f"B.{name}{m}": in_large_pages(array) for name, array in own.items()})
        made.above.append(parents)
        made = made._replace(places=level.positions(own, parents, size))
    return made


def one_each(parts: Sequence[writers.Part], m: int) -> bool:
    """Has each entry a position of its own at level m, and one below each of those above? Then nothing is counted."""
    return writers.lone(parts) and not parts[m].merges and (m == 0 or not parts[m - 1].merges)


def passes(parts: Sequence[writers.Part]) -> int:
    """How often entries are counted."""
    return sum(bool(part.counts) and not one_each(parts, m) for m, part in enumerate(parts))


def fits(n: int, target: Target) -> bool:
    """Are integers of 32 bits wide enough for n entries in the levels of a target?"""
    full = all(level.full for level in target.stack)
    return max(n, *target.sizes, math.prod(target.sizes) if full else 0) <= INT32


def compact(target: Target, places: int, n: int) -> bool:
    """Is entry k at place k, in the order of the target?"""
    counted = any(level.store.counts for level in target.stack if level.store)
    ordered = all(level.walk and level.walk.ordered for level in target.stack)
    return counted and ordered and places == n and target.needed == len(target.stack)


def parts_of_target(target: Target, dtype: torch.dtype) -> tuple[writers.Part, ...]:
    """Return what a writer must know of the levels of a target."""
    return tuple(_part(level, dtype) for level in target.stack)


@functools.lru_cache(maxsize=256)
def _part(level: Level, dtype: torch.dtype) -> writers.Part:
    """What the writer must know of a level. The types of its arrays don't depend on its entries: ask with none."""
    store, made = level.store, level.prepare(torch.zeros(0, dtype=dtype), 0, 1, dtype)
    assert store is not None
    arrays = tuple((name, C_INDEX[array.dtype]) for name, array in made.items())
    whole, ordered = level.full and not level.arrays, level.walk is not None and level.walk.ordered
    numbers = tuple(level.numbers(made))
    return writers.Part(store.at, store.write, store.counts, level.merges, whole, ordered, arrays, numbers)
