"""Walking several sparse levels at once.

What must be present is a list of sets of operands (``algebra.needed``): for ``a * b + c`` that is
{a, b, c}, {a, b}, {c}. The largest set first: while all its operands have entries left, look at the smallest
coordinate among them, choose the branch for the operands at it, and step. Then the sets that are left.

Two operands are compared with each other, and each branch steps by itself: where the processor foresees the branch it
does not wait for the coordinates to know the next positions, which is two and a half times as fast on blocks and
stencils as counters that are increased by a comparison, and no slower on most random rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import ONE, ZERO, Bin, Expr, For, If, Let, Set, Stmt, Var, While, both


@dataclass(frozen=True)
class Iterator:
    """One sparse level that is walked: its counter, its range, and a position's coordinate and if it is real."""

    operand: int
    level: int
    begin: Expr
    end: Expr
    at: Expr
    coord: Callable[[Expr], Expr]
    real: Callable[[Expr], Expr] | None
    kept: Callable[[Expr], Expr] | None = None  # of those that are real, is it an entry, or a zero that is stored?

    def local(self, what: str) -> str:
        """Return a variable of this walk."""
        return names.local(self.operand, self.level, what)

    @property
    def counter(self) -> str:
        """The name of its counter."""
        return self.local("q")

    def more(self) -> Expr:
        """Has it entries left?"""
        inside: Expr = Bin("<", Var(self.counter), Var(self.local("end")))
        return inside if self.real is None else Bin("&&", inside, self.real(self.at))


Inside = Callable[[dict[int, Expr]], list[Stmt]]


def merge(var: str, its: list[Iterator], points: set[frozenset[int]], inside: Inside, size: Expr) -> list[Stmt]:
    """Return the loops that visit every coordinate at which one of the sets is present, in ascending order."""
    by = {it.operand: it for it in its}
    out: list[Stmt] = []
    for it in its:
        out += [Let(it.counter, it.begin, True), Let(it.local("end"), it.end)]
    ranked = sorted(points, key=lambda point: (-len(point), sorted(point)))
    if frozenset() in points:
        return [*out, For(var, ZERO, size, _everywhere(var, its, ranked, inside))]
    for point in ranked:
        here = [by[k] for k in sorted(point)]
        going = both(it.more() for it in here)
        assert going is not None
        out.append(While(going, _step(var, here, [p for p in ranked if p <= point], inside)))
    return out


def _everywhere(var: str, its: list[Iterator], ranked: list[frozenset[int]], inside: Inside) -> list[Stmt]:
    """A counted loop: at each coordinate, which operands have an entry?"""
    body: list[Stmt] = []
    for it in its:
        body.append(Let(it.local("here"), ZERO, True))
        body.append(If(it.more(), [Set(it.local("here"), Bin("==", it.coord(it.at), Var(var)))]))
    here = {it.operand: Bin("!=", Var(it.local("here")), ZERO) for it in its}
    body += _branches(ranked, here, {it.operand: it.at for it in its}, inside)
    return [*body, *(Set(it.counter, Var(it.local("here")), "+=") for it in its)]


def _step(var: str, here: list[Iterator], ranked: list[frozenset[int]], inside: Inside) -> list[Stmt]:
    if len(here) == 1:
        it = here[0]
        return [Let(var, it.coord(it.at)), *inside({it.operand: it.at}), Set(it.counter, ONE, "+=")]
    body: list[Stmt] = [Let(it.local("i"), it.coord(it.at)) for it in here]
    if len(here) == 2:
        return [*body, *_compared(var, here[0], here[1], ranked, inside)]
    smallest: Expr = Var(here[0].local("i"))
    for it in here[1:]:
        smallest = Bin("min", smallest, Var(it.local("i")))
    body.append(Let(var, smallest))
    stands = {it.operand: Bin("==", Var(it.local("i")), Var(var)) for it in here}
    body += _branches(ranked, stands, {it.operand: it.at for it in here}, inside)
    steps: list[Stmt] = [Set(it.counter, Bin("==", Var(it.local("i")), Var(var)), "+=") for it in here]
    return [*body, *steps]


def _compared(var: str, a: Iterator, b: Iterator, ranked: list[frozenset[int]], inside: Inside) -> list[Stmt]:
    """Two operands: both have the coordinate, or one of them is behind."""

    def turn(*here: Iterator) -> list[Stmt]:
        found = next((point for point in ranked if point <= {it.operand for it in here}), None)
        body = [] if found is None else inside({it.operand: it.at for it in here if it.operand in found})
        named: list[Stmt] = [Let(var, Var(here[0].local("i")))] if body else []
        return [*named, *body, *(Set(it.counter, ONE, "+=") for it in here)]

    first, second = Var(a.local("i")), Var(b.local("i"))
    return [If(Bin("==", first, second), turn(a, b), [If(Bin("<", first, second), turn(a), turn(b))])]


def _branches(ranked: list[frozenset[int]], stands: dict[int, Bin], at: dict[int, Expr], inside: Inside) -> list[Stmt]:
    """Return a chain of branches, the largest set first; the empty set is what is left."""
    if not ranked:
        return []
    point, *rest = ranked
    body = inside({k: at[k] for k in point})
    condition = both(stands[k] for k in sorted(point))
    if condition is None:
        return body
    other = _branches(rest, stands, at, inside)
    return [If(condition, body, other)] if body or other else []
