"""Conversions: read the entries of one stack of levels, sort them by what another counts, write its arrays.

Each step is a loop nest (``loops.nest``), which prints, which ``loops.machine`` runs and ``emit.routines`` turns into
C. From rows to columns, entries are stored as the source is walked (``streams``)::

    k = 0
    for A0.q in 0 .. A.size0:            # the source is walked: its levels say how (loops.walks)
      A0.i = A0.q
      for A1.q in A.pos1[A0.q] .. A.pos1[A0.q + 1]:
        x0 = A0.i
        x1 = A.crd1[A1.q]
        B0.i = x1                        # coordinates of the target's levels, and positions there
        B0.p = B0.i
        B1.i = x0
        B1.p = ranks[B0.p]
        ranks[B0.p] += 1
        B.crd1[B1.p] = B1.i              # what the level stores
        to[B1.p] = from[A1.q]

Which steps are needed follows from the order of the two: :func:`unsorted_levels` says how many levels of the target
entries must still be sorted by, :func:`orders` in which orders the source can be walked. Where nothing must be sorted,
or only the entries of different parents are mixed, a walk stores them. Else an entry becomes a **key**: the coordinates
of the levels it goes to, side by side in the bits of one integer, the outermost highest. So it is compared, sorted and
split by shifts, and any reader goes with any writer:

- a reader (``readers``) walks the levels of a source, or a dense tensor, or a list of numbers, and writes keys;
- ``sorting`` orders keys by some of their bits;
- a writer (``writers``) goes through sorted keys, counts for each level what its ``prepare`` asks, and stores.

``passes`` runs nests on tensors; ``reading``, ``writing``, ``streaming`` and ``restack`` choose them and allocate.
In nests, A is the source and B the target: ``A.pos1`` is an array of the source's level 1, ``B0.i`` a coordinate of the
target's level 0, ``x0`` one of dimension 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.loops.nest import ZERO, Bin, Expr, Num, Var


class Cut(NamedTuple):
    """The part of a dimension that a level counts: ``x / weight % size`` (a size of 0: all that is left).

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import show
    >>> show(Cut(0, 4, 0).coordinate()), show(Cut(0, 1, 4).coordinate())  # blocks of four, and the places in one
    ('x0 / 4', 'x0 % 4')
    """

    dim: int
    weight: int = 1
    size: int = 0

    def coordinate(self) -> Expr:
        """Return the coordinate of the level, from those of the dimensions: x0, x1, ..."""
        if self.size == 1:
            return ZERO
        x: Expr = Var(f"x{self.dim}")
        x = x if self.weight == 1 else Bin("/", x, Num(self.weight))
        return Bin("%", x, Num(self.size)) if self.size else x


def cuts(parts: Sequence[tuple[int, int]], sizes: Sequence[int]) -> tuple[Cut, ...] | None:
    """Return what each level counts, from its dimension and its weight there; None if they don't cut cleanly.

    Examples
    --------
    >>> cuts(((0, 4), (1, 4), (0, 1), (1, 1)), (3, 5, 4, 4))
    (Cut(dim=0, weight=4, size=0), Cut(dim=1, weight=4, size=0), Cut(dim=0, weight=1, size=4), ...)
    >>> cuts(((0, 3), (0, 1)), (3, 4)) is None  # two places for coordinate 3
    True
    """
    found = []
    for (dim, weight), own in zip(parts, sizes, strict=True):
        if own == 1:  # nothing to count, whatever its weight
            found.append(Cut(dim, 1, 1))
            continue
        others = [(w, size) for (d, w), size in zip(parts, sizes, strict=True) if d == dim and size != 1]
        covered = math.prod(size for w, size in others if w < weight)
        above = [w for w, _ in others if w > weight]
        if weight != covered or [w for w, _ in others].count(weight) > 1:
            return None
        found.append(Cut(dim, weight, min(above) // weight if above else 0))
    return tuple(found)


def unsorted_levels(source: Sequence[Cut], target: Sequence[Cut], needed: int | None = None) -> int:
    """How many of the target's levels must be sorted by; the others follow, since a stable sort keeps their order.

    The order of levels from ``needed`` on does not matter (dense ones at the end find their places without).

    Examples
    --------
    >>> rows, columns = [Cut(0), Cut(1)], [Cut(1), Cut(0)]
    >>> unsorted_levels(rows, rows), unsorted_levels(rows, columns)
    (0, 1)
    >>> blocks = [Cut(0, 4), Cut(1, 4), Cut(0, 1, 4), Cut(1, 1, 4)]  # rows inside of a block follow from rows
    >>> unsorted_levels(rows, blocks), unsorted_levels(columns, blocks), unsorted_levels(columns, blocks, needed=2)
    (2, 3, 1)
    """
    marks: dict[int, list[int]] = {}
    for cut in (*source, *target):
        marks.setdefault(cut.dim, []).append(cut.weight)
    marks = {d: sorted(set(w)) for d, w in marks.items()}
    needed = len(target) if needed is None else needed
    if any(high % low for w in marks.values() for low, high in itertools.pairwise(w)):
        return needed

    def digits(levels: Sequence[Cut]) -> list[tuple[int, int]]:
        out = []
        for c in levels:
            end = c.weight * c.size if c.size else float("inf")
            out += [(c.dim, w) for w in reversed(marks[c.dim]) if c.weight <= w < end]
        return out

    have = digits(source)
    for m in range(needed):
        tail, open = digits(target[m:needed]), digits(target[m:])
        if [g for g in have if g in open][: len(tail)] == tail:  # a digit that is not needed must not come between
            return m
    return needed


def orders(dense: Sequence[bool]) -> list[tuple[int, ...]]:
    """Return the orders in which levels can be walked: a dense one may come before those above it.

    Examples
    --------
    >>> orders((True, False, True))
    [(0, 1, 2), (0, 2, 1), (2, 0, 1)]
    """
    found: list[tuple[int, ...]] = [()]
    for n, free in enumerate(dense):
        found = [(*o[:at], n, *o[at:]) for o in found for at in range(len(o), -1 if free else len(o) - 1, -1)]
    return found
