"""Search: the cheapest way to a product of several factors, and the ways that lost.

Every set of factors has a best way, from the best ways of its subsets: one kernel over parts, each of which is a factor
or a temporary. Few factors are cut in every way; many in two, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.planner.costs import FREE, Cost, cost
from gossamer.compiler.planner.facts import Facts, joined, result

SPARSE_BELOW = 0.1  # density of a temporary below which only its entries are stored
MOST_CUTS = 4  # factors that are cut into parts in every way; more are cut in two
MOST_FACTORS = 10  # more are one kernel
_TIMES_LARGER, _SMALL = 8, 1 << 20  # limits of a dense temporary: times all operands; elements


@dataclass(frozen=True)
class Way:
    """How a set of factors is multiplied: one kernel over parts, which are factors or ways themselves."""

    parts: tuple[Way, ...]  # none: it is a factor as it is
    factor: int
    facts: Facts
    cost: Cost
    total: Cost

    def __str__(self) -> str:
        if not self.parts:
            return operand_name(self.factor)
        if len(self.parts) == 1:
            return f"sum({self.parts[0]})"
        return " ".join(f"({part})" if len(part.parts) > 1 else str(part) for part in self.parts)

    def kernels(self) -> list[Way]:
        """The kernels, in the order in which they run."""
        return [*(k for part in self.parts for k in part.kernels()), self] if self.parts else []


@dataclass(frozen=True)
class Found:
    """The way that was chosen, and the others, cheapest first."""

    way: Way
    lost: tuple[Way, ...]


@lru_cache(maxsize=1024)
def search(factors: tuple[Facts, ...], output: tuple[str, ...], like: int = -1, sparse: bool = False) -> Found:
    """Return the cheapest way to a product. ``like``: the factor whose entries the result has (-1: none).

    Examples
    --------
    >>> a = Facts(("n", "m"), (1000, 1000), 10_000.0, True)
    >>> x, w = Facts(("m", "k"), (1000, 64), 64e3, False), Facts(("k", "o"), (64, 8), 512.0, False)
    >>> found = search((a, x, w), ("n", "o"))
    >>> print(found.way, "| lost:", *found.lost, sep="  ")
    A (B C)  | lost:  (A B) C  A B C  (A C) B
    """
    return _Search(factors, output, like, sparse).found()


class _Search:
    def __init__(self, factors: Sequence[Facts], output: tuple[str, ...], like: int, sparse: bool) -> None:
        self.factors, self.output, self.like, self.sparse = factors, output, like, sparse
        self.all = (1 << len(factors)) - 1
        self.known: dict[int, Way] = {}
        self.most = max(_TIMES_LARGER * sum(f.entries for f in factors), _SMALL)

    def found(self) -> Found:
        ways = sorted(self.ways(self.all), key=lambda way: (way.total.time, str(way)))
        return Found(ways[0], tuple(ways[1:4]))

    def best(self, mask: int) -> Way:
        """The best way to a set of factors, as part of a larger one."""
        if mask not in self.known:
            self.known[mask] = min(self.ways(mask), key=lambda way: (way.total.time, str(way)))
        return self.known[mask]

    def ways(self, mask: int) -> list[Way]:
        if mask & (mask - 1) == 0:
            return [self.single(mask.bit_length() - 1)]
        found = [self.kernel(mask, tuple(self.best(block) for block in cut)) for cut in self.cuts(mask)]
        fits = [way for way in found if self.fits(mask, way)]
        if mask == self.all and not fits:  # one kernel over the factors as they are
            return [self.kernel(mask, tuple(Way((), k, f, FREE, FREE) for k, f in enumerate(self.factors)))]
        return fits or found

    def fits(self, mask: int, way: Way) -> bool:
        """Is a temporary small enough; and does a sparse result follow from the patterns of the last step?"""
        if mask != self.all:
            return way.facts.sparse or way.facts.places <= self.most
        parts = [part.facts for part in way.parts]
        return not self.sparse or self.like >= 0 or _covered(self.output, parts)

    def single(self, k: int) -> Way:
        """A factor: with indices that only it has summed up first, if it is sparse (torch does it for dense ones)."""
        facts = self.factors[k]
        plain = Way((), k, facts, FREE, FREE)
        kept = self.kept(1 << k)
        if not facts.sparse or set(kept) == set(facts.names) or len(self.factors) == 1:
            return plain
        return self.kernel(1 << k, (plain,))

    def cuts(self, mask: int) -> Iterator[tuple[int, ...]]:
        """Ways to cut a set of factors into two or more parts; at the root, the one whose entries are kept is alone."""
        bits = [1 << k for k in range(len(self.factors)) if mask >> k & 1]
        own = 1 << self.like if self.like >= 0 and mask == self.all else 0
        every = _partitions(bits) if len(bits) <= MOST_CUTS else _halves(bits)
        for cut in every:
            if not own or own in cut:
                yield cut

    def kept(self, mask: int) -> tuple[str, ...]:
        """Indices of a set of factors that the result or other factors have; those of sparse factors first."""
        inside = [f for k, f in enumerate(self.factors) if mask >> k & 1]
        outside = {v for k, f in enumerate(self.factors) if not mask >> k & 1 for v in f.names} | set(self.output)
        ordered = sorted(inside, key=lambda f: not f.sparse)
        return tuple(dict.fromkeys(v for f in ordered for v in f.names if v in outside))

    def kernel(self, mask: int, parts: tuple[Way, ...]) -> Way:
        """One kernel over parts."""
        facts = [part.facts for part in parts]
        turns = joined(facts)
        names = self.output if mask == self.all else self.kept(mask)
        sizes, entries = result(facts, names, turns)
        made = Facts(names, sizes, entries, False)
        like = next((f for f in facts if f.sparse and f.names == names), None)
        if mask == self.all:
            stored = self.like >= 0 or self.sparse
        else:
            few = self.sparse or entries < SPARSE_BELOW * made.places  # what a sparse result is made of is sparse
            stored = like is not None or (few and len(names) > 1 and _covered(names, facts))
        if stored:
            made = Facts(names, sizes, like.entries if like is not None else entries, True)
        else:
            made = Facts(names, sizes, made.places, False)
        own = cost(facts, made, stored and like is None)
        total = own
        for part in parts:
            total = total + part.total
        return Way(parts, -1, made, own, total)


def _covered(names: Sequence[str], parts: Sequence[Facts]) -> bool:
    """Has a sparse part each of these indices?"""
    return all(any(v in part.names for part in parts if part.sparse) for v in names)


def _halves(bits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All of them apart, and every cut in two."""
    yield tuple(bits)
    every = sum(bits)
    for chosen in range(1, 1 << (len(bits) - 1)):
        left = sum(bit for n, bit in enumerate(bits) if chosen >> n & 1)
        yield left, every - left


def _partitions(bits: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every partition into two or more parts."""

    def grow(n: int, blocks: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if n == len(bits):
            yield blocks
            return
        for b in range(len(blocks)):
            yield from grow(n + 1, (*blocks[:b], blocks[b] | bits[n], *blocks[b + 1 :]))
        yield from grow(n + 1, (*blocks, bits[n]))

    return (cut for cut in grow(1, (bits[0],)) if len(cut) > 1)
