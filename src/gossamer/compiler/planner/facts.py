"""Facts: what the planner knows of an operand or of a temporary. Sizes and entries, never the pattern itself.

A product is a join: entries of two operands meet where their shared indices have equal values. Its size is estimated as
a database does it: |A| |B| / max(values of the index in A, values in B), with values spread evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Indices, their sizes, the number of entries that loops visit, and whether only entries are stored.

    Examples
    --------
    >>> a = Facts(("i", "k"), (100, 1000), 100.0, True)
    >>> round(a.values("i")), round(a.values("k"))  # how many different ones its entries have
    (63, 95)
    """

    names: tuple[str, ...]
    sizes: tuple[int, ...]
    entries: float
    sparse: bool

    @property
    def places(self) -> float:
        """Entries that a dense tensor of this shape has."""
        return math.prod(float(s) for s in self.sizes)

    def values(self, name: str) -> float:
        """How many different values an index has, of entries that are spread evenly."""
        size = float(self.sizes[self.names.index(name)])
        return filled(self.entries, size) if self.sparse else size


def filled(balls: float, places: float) -> float:
    """How many places are not empty after this number of entries fell into them at random.

    Examples
    --------
    >>> round(filled(100, 100)), round(filled(10, 1e6)), filled(5, 0)
    (63, 10, 0.0)
    """
    if places <= 0 or balls <= 0:
        return 0.0
    return -places * math.expm1(-balls / places)


def rounded(entries: float) -> float:
    """Entries to two digits: patterns that hardly differ have equal facts, and so one plan.

    Examples
    --------
    >>> rounded(123456.0), rounded(7.0), rounded(0.0)
    (120000.0, 7.0, 0.0)
    """
    return float(f"{entries:.1e}")


def joined(parts: Sequence[Facts]) -> float:
    """Estimate how many combinations of entries meet: the innermost turns of a kernel over these parts.

    Examples
    --------
    >>> a = Facts(("i", "k"), (100, 100), 1000.0, True)
    >>> joined([a, Facts(("k", "j"), (100, 8), 800.0, False)])  # each entry meets a row
    8000.0
    """
    total = 1.0
    for part in parts:
        total *= part.entries
    for name in dict.fromkeys(v for part in parts for v in part.names):
        having = [part.values(name) for part in parts if name in part.names]
        for values in sorted(having)[1:]:
            total /= max(values, 1.0)
    return total


def result(parts: Sequence[Facts], names: tuple[str, ...], turns: float) -> tuple[tuple[int, ...], float]:
    """Sizes of a product with these indices, and how many entries it has, at most as many as there are turns.

    Examples
    --------
    >>> a = Facts(("i", "k"), (100, 100), 200.0, True)
    >>> sizes, entries = result([a, Facts(("k", "j"), (100, 100), 200.0, True)], ("i", "j"), 400.0)
    >>> sizes, round(entries)
    ((100, 100), 389)
    """
    sizes, values = [], 1.0
    for name in names:
        having = [part for part in parts if name in part.names]
        sizes.append(max(part.sizes[part.names.index(name)] for part in having))
        values *= min(part.values(name) for part in having)
    return tuple(sizes), filled(turns, values)
