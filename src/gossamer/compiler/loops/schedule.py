"""Which loops, in which order: chosen by what they would cost on this data.

Orders are built variable by variable, the cheapest few kept at each length. The cost of an order is the number of turns
of its loops, from the actual number of entries below each position of each operand, with weights for what a turn
does: walking several levels at once, searching, scattering into a workspace, sorting at the end, strides in memory,
vectors, threads. The weights are relative to one turn of a plain loop and were measured on this kind of
machine; they are at the top of this file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gossamer.compiler.language.algebra import needed, operands
from gossamer.compiler.language.program import Derived, Operand, Output, Stack, Strided
from gossamer.compiler.language.tree import Tree

MERGE = 3.0  # a step of a walk over several levels
SEARCH = 2.0  # a step of a search
SCATTER = 2.5  # adding to a workspace
SORT = 40.0  # an entry that has to be sorted at the end
VECTOR = 0.12  # a turn in lanes of vectors
STRIDED = 3.0  # a turn that jumps through memory
GATHER = 0.5  # reading at the coordinates of a sparse level, from one row
MEMORY = 1.0  # adding to memory instead of a register
THREADS = 3.0  # sharing among threads; not their actual number: the order decides how sums are rounded
COPY = 2.0  # an element of an operand that is copied to make its rows contiguous
TURN = 12.0  # an entry of an operand that is sorted again (once) or read through a permutation (each time)
_BEAM = 48


@dataclass(frozen=True)
class Given:
    """An operand as the scheduler sees it: its stack or strides, entries below a position of each level, its size."""

    operand: Operand
    fans: tuple[float, ...] = ()
    count: float = 0.0


@dataclass(frozen=True)
class Choice:
    """What the scheduler chose, and what it expects of it."""

    order: tuple[str, ...]
    cost: float
    strip: str | None
    method: str  # of a sparse output: "direct", "workspace" or "sort"
    copies: tuple[int, ...] = ()  # ordinary operands to make contiguous along the innermost loop
    turned: tuple[int, ...] = ()  # sparse operands to sort in the order of the loops
    turns: float = 0.0  # innermost turns


@dataclass(frozen=True)
class _Partial:
    order: tuple[str, ...]
    turns: float
    cost: float
    depth: tuple[int, ...]
    known: frozenset[str]
    plain: bool  # is the last loop a counted one?
    loose: bool = False  # are coordinates of the output visited in no order?


class Scheduler:
    """Chooses the order of loops for one expression on given operands."""

    def __init__(
        self,
        tree: Tree,
        given: list[Given],
        sizes: Mapping[str, int],
        output: Output,
        derived: tuple[Derived, ...] = (),
        reduce: str = "sum",
        order: tuple[str, ...] | None = None,
    ) -> None:
        self.order = order  # as given by hand; None: any
        self.tree, self.given, self.sizes, self.output = tree, given, sizes, output
        self.derived, self.reduce = derived, reduce
        parts = {d.var: [v for v, _ in d.parts] for d in derived}
        every = [v for g in given for v in g.operand.vars] + list(output.vars)
        self.vars = list(dict.fromkeys(p for v in every for p in parts.get(v, [v])))
        self.out = frozenset(p for v in output.vars for p in parts.get(v, [v]))
        self.used = operands(tree)
        # a factor: wherever it has no entry, there is nothing
        stacks = frozenset(k for k in self.used if isinstance(given[k].operand, Stack))
        points = needed(tree, stacks)
        self.factors = frozenset.intersection(*points) if points else frozenset()

    def choose(self) -> Choice | None:
        """Return the cheapest order; None if there is none (a level that can't be searched would have to be)."""
        start = self.resolve(_Partial((), 1.0, 0.0, (0,) * len(self.given), frozenset(), False))
        front = [start] if start else []
        for _ in self.vars:
            grown = [self.extend(p, v) for p in front for v in self.next_vars(p)]
            front = sorted((p for p in grown if p is not None), key=lambda p: (p.cost, p.order))[:_BEAM]
        done = [self.finish(p) for p in front]
        best = [c for c in done if c is not None and math.isfinite(c.cost)]
        return min(best, key=lambda c: (c.cost, c.order), default=None)

    def next_vars(self, p: _Partial) -> list[str]:
        """Return the loops that may come next."""
        return [v for v in self.vars if v not in p.order] if self.order is None else [self.order[len(p.order)]]

    def extend(self, p: _Partial, var: str) -> _Partial | None:
        """Put one more loop inside."""
        if self.reduce in ("max", "min", "top", "bottom") and var not in self.out and not self.out <= p.known:
            return None  # a maximum is in a register: all loops of the output are outside its loop
        its, fans = [], []
        for k in self.used:
            level = self.next_level(p, k)
            if level is not None and level.var == var and not level.full:
                its.append(k)
                fans.append(self.given[k].fans[p.depth[k]])
        size = float(self.sizes[var])
        points = needed(self.tree, frozenset(its))
        depth = list(p.depth)
        for k in its:
            depth[k] += 1
        walk = size
        alone = len(its) == 1 and frozenset() not in points
        loose = any(not self.given[k].operand.levels[p.depth[k]].walk.ordered for k in its)  # type: ignore[union-attr]
        if loose and not alone:
            return None  # what is compared with another, or with every coordinate, must ascend
        if not its:
            turns = size
        elif frozenset() in points:
            turns, walk = size, size * (1 + len(its))
        elif len(its) == 1:
            turns = walk = fans[0]
        else:
            walk = MERGE * sum(fans)
            turns = size * math.prod(min(f / max(size, 1), 1.0) for f in fans)
            turns = turns if len(points) == 1 else min(size, sum(fans))
        cost = p.cost + p.turns * (walk + 1)
        loose = p.loose or (loose and var in self.out)
        q = _Partial((*p.order, var), p.turns * turns, cost, tuple(depth), p.known | {var}, not its, loose)
        return self.resolve(q)

    def next_level(self, p: _Partial, k: int):  # type: ignore[no-untyped-def]
        """Return the next level of an operand that is not reached yet."""
        operand = self.given[k].operand
        if not isinstance(operand, Stack) or p.depth[k] >= len(operand.levels):
            return None
        return operand.levels[p.depth[k]]

    def resolve(self, p: _Partial) -> _Partial | None:
        """Follow what is known by now: located levels are free, searched ones are not."""
        known = set(p.known)
        known |= {d.var for d in self.derived if all(v in known for v, _ in d.parts)}
        depth, turns, cost = list(p.depth), p.turns, p.cost
        for k in self.used:
            while True:
                q = _Partial(p.order, turns, cost, tuple(depth), frozenset(known), p.plain, p.loose)
                level = self.next_level(q, k)
                if level is None or level.var not in known:
                    break
                if not level.full:
                    if not level.walk.searchable:
                        return None
                    fan = self.given[k].fans[depth[k]]
                    cost += turns * SEARCH * (1 + math.log2(fan + 1))
                    if k in self.factors:
                        turns *= min(1.0, fan / max(self.sizes[level.var], 1))
                depth[k] += 1
        return _Partial(p.order, turns, cost, tuple(depth), frozenset(known), p.plain, p.loose)

    # -- the end of an order: what the innermost loop does, and where results go

    def finish(self, p: _Partial) -> Choice | None:
        order, cost, turns = p.order, p.cost, p.turns
        settled = max((d + 1 for d, v in enumerate(order) if v in self.out), default=0)
        before = any(v not in self.out for v in order[:settled])
        last = order[-1] if order else None
        method, strip, copies = "direct", None, []  # type: str, str | None, list[int]
        if self.output.kind in ("rows", "keys"):
            outer = self.output.vars[:-1]
            if order[: len(outer)] == outer and not p.loose:
                if before:
                    method, cost = "workspace", cost + SCATTER * turns
            else:
                if self.output.kind == "rows":
                    return None
                method = "sort"
        if last is not None and p.plain:
            cost, strip, copies = self.innermost(last, order, cost, turns, method)
        elif last is not None:
            cost += self.jumps(last) * turns
        if self.output.kind in ("dense", "pattern"):
            nest = nest_order(Choice(order, 0.0, strip, method), self.out, False)
            settled = max((d + 1 for d, v in enumerate(nest) if v in self.out), default=0)
            if any(v not in self.out for v in nest[:settled]):
                cost += (VECTOR if strip else 1.0) * MEMORY * turns
        shared = bool(order) and self.shares(order[0])
        cost = cost / THREADS if shared else cost
        cost += sum(COPY * self.given[k].count for k in copies) + (SORT * turns if method == "sort" else 0.0)
        return Choice(order, cost, strip, method, tuple(copies), (), turns)

    def innermost(
        self, last: str, order: tuple[str, ...], cost: float, turns: float, method: str
    ) -> tuple[float, str | None, list[int]]:
        """Weigh a counted innermost loop: vectors if everything in it is contiguous or can be made so."""
        copies = []
        for k in self.used:
            operand = self.given[k].operand
            if isinstance(operand, Strided) and last in operand.vars and operand.unit != last:
                copies.append(k)
            twice = operand.vars.count(last) > 1  # a diagonal is searched for
            if isinstance(operand, Stack) and last in operand.vars and (twice or operand.levels[-1].var != last):
                return cost + (STRIDED - 1) * turns, None, []
        if any(last in [v for v, _ in d.parts] for d in self.derived):
            return cost, None, []
        if self.output.kind == "dense" and last in self.out:
            saved = (1 - VECTOR) * turns
            return cost - saved, last, copies
        if last not in self.out and method == "direct":
            return cost - (1 - 2 * VECTOR) * turns, None, copies
        return cost, None, []

    def jumps(self, last: str) -> float:
        """Weigh reads of ordinary operands at the coordinates of a sparse inner loop: from one row, or from many."""
        reads = [o for o in (self.given[k].operand for k in self.used) if isinstance(o, Strided) and last in o.vars]
        return sum(GATHER if o.unit == last else STRIDED for o in reads)

    def shares(self, var: str) -> bool:
        if self.output.kind == "pattern":
            return var in self.given[self.output.like].operand.vars
        return var in self.out


@lru_cache(maxsize=4096)
def schedule(
    tree: Tree,
    given: tuple[Given, ...],
    sizes: tuple[tuple[str, int], ...],
    output: Output,
    derived: tuple[Derived, ...],
    reduce: str,
    order: tuple[str, ...] | None = None,
) -> Choice | None:
    """Choose as :class:`Scheduler` does, once for operands that look alike: new structures are often like old ones."""
    return Scheduler(tree, list(given), dict(sizes), output, derived, reduce, order).choose()


def nest_order(choice: Choice, out_vars: frozenset[str], outside: bool) -> tuple[str, ...]:
    """Return the loops as they are nested: a strip goes outside the sums just before it, or outside all.

    Examples
    --------
    >>> nest_order(Choice(("i", "k", "j"), 1.0, "j", "direct"), frozenset("ij"), False)
    ('i', 'j', 'k')
    """
    order, strip = list(choice.order), choice.strip
    if strip is None:
        return choice.order
    order.remove(strip)
    if outside and order and order[0] in out_vars:
        return (strip, *order)
    place = len(order)
    while place and order[place - 1] not in out_vars:
        place -= 1
    return (*order[:place], strip, *order[place:])
