"""Conversions as C: read the entries of one stack of levels, sort them by what another counts, write its arrays.

Which parts of that are needed follows from the order of the two: :func:`unsorted_levels` says how many levels of the
target entries must still be sorted, :func:`orders` in which orders the source can be walked. Where nothing must be
sorted, or only the entries of different parents are mixed, a walk stores them (``convert.streams``). Else
an entry becomes a **key**: the coordinates of the levels it goes to, side by side in the bits of one integer, the
outermost highest. So it is compared, sorted and taken apart by shifts, by three functions; any reader goes with any
writer:

- a reader (``convert.readers``) walks the levels of a source, or a dense tensor, or a list of numbers, and
  writes keys;
- :data:`SORT` orders keys by some of their bits: counted, then put in their place, a digit at a time, stably;
- a writer (``convert.writers``) goes through sorted keys, counts for each level what its ``prepare`` asks,
  and stores.

``restack.py`` and ``streaming.py`` fit the pieces together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """The part of a dimension that a level counts: ``x / weight % size`` (a size of 0: all that is left).

    Examples
    --------
    >>> Cut(0, 4, 0).expression(), Cut(0, 1, 4).expression()  # blocks of four, and the places in one
    ('x0 / 4', 'x0 % 4')
    """

    dim: int
    weight: int = 1
    size: int = 0

    def expression(self) -> str:
        """Return the coordinate, in C."""
        text = f"x{self.dim}" if self.weight == 1 else f"x{self.dim} / {self.weight}"
        return f"{text} % {self.size}" if self.size else text


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


def named(text: str, names: dict[str, str]) -> str:
    """Return an expression with other names in it."""
    return re.sub(r"[a-z]\w*", lambda m: names.get(m[0], m[0]), text)


#: Keys in ascending order of the bits from ``low`` on, those that are alike as they came. Returns 1 if the result
#: is in the second pair of arrays. Without ``where``, entry k was at k.
SORT = """\
typedef unsigned {key} KEY; typedef {index} INDEX;
long sort(long n, long low, long digits, long bits, KEY *key, INDEX *where, KEY *key2, INDEX *where2, INDEX *counts,
          long numbered) {{
  const long buckets = 1L << bits;
  for (long b = 0; b < digits * buckets; ++b) counts[b] = 0;
  for (long k = 0; k < n; ++k)
    for (long d = 0; d < digits; ++d) ++counts[d * buckets + (key[k] >> (low + d * bits) & (buckets - 1))];
  long second = 0;
  for (long d = 0; d < digits; ++d) {{
    INDEX *const at = counts + d * buckets;
    const long shift = low + d * bits;
    if (n && at[key[0] >> shift & (buckets - 1)] == n && (d + 1 < digits || numbered)) continue;
    long before = 0;
    for (long b = 0; b < buckets; ++b) {{ const long here = at[b]; at[b] = before, before += here; }}
    for (long k = 0; k < n; ++k) {{
      const KEY now = key[k];
      const long to = at[now >> shift & (buckets - 1)]++;
      key2[to] = now, where2[to] = numbered ? where[k] : k;
    }}
    KEY *const k2 = key; key = key2, key2 = k2;
    INDEX *const w2 = where; where = where2, where2 = w2;
    second ^= 1, numbered = 1;
  }}
  return second;
}}
long unique(long n, KEY *key, INDEX *group) {{
  long last = -1;
  for (long k = 0; k < n; ++k) {{
    last += last < 0 || key[k] != key[last];
    key[last] = key[k], group[k] = last;
  }}
  return last + 1;
}}
long repeats(long n, const KEY *key) {{
  for (long k = 1; k < n; ++k) if (key[k] == key[k - 1]) return 1;
  return 0;
}}
"""

MOVE = """\
typedef struct {{ {ctype} part[{per}]; }} VALUE;
void move(long n, const VALUE *restrict from, const {index} *where, VALUE *restrict to, const {other} *place) {{
  if (where && place) for (long k = 0; k < n; ++k) to[place[k]] = from[where[k]];
  else if (where) for (long k = 0; k < n; ++k) to[k] = from[where[k]];
  else if (place) for (long k = 0; k < n; ++k) to[place[k]] = from[k];
  else for (long k = 0; k < n; ++k) to[k] = from[k];
}}
"""
