"""From a program to a loop nest: one recursion over the loop variables.

For each variable, the operands that have a sparse level there are walked together: none, and it is a counted loop; one,
and it is a loop over its positions; more, and ``loops.merge`` joins them as the tree asks, products by
intersection and sums by union. Levels that have a place for every coordinate are located, and a sparse level
whose coordinate is known already is searched. What is left of the tree at each branch is simplified, so a
branch where a factor is missing is never written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gossamer.compiler.emit import params
from gossamer.compiler.language import algebra
from gossamer.compiler.language.algebra import needed, operands, without
from gossamer.compiler.language.program import Program, Stack
from gossamer.compiler.language.tree import ZERO as NOTHING
from gossamer.compiler.language.tree import Access, Tree
from gossamer.compiler.loops import names, results, walks
from gossamer.compiler.loops.merge import Iterator, merge
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Acc,
    Append,
    Bin,
    Drain,
    Expr,
    Find,
    For,
    If,
    Into,
    Let,
    Nest,
    Num,
    Set,
    Stmt,
    Store,
    Var,
    add,
    mul,
)


class State(NamedTuple):
    """Where the recursion stands: the tree left, each stack's depth and position, and the variables that are known."""

    tree: Tree
    at: dict[int, tuple[int, Expr]]
    known: frozenset[str]


Then = Callable[[State], list[Stmt]]


#: What extremes begin with; of "top" and "bottom" it is also the result where there is no entry.
START = {"max": float("-inf"), "top": float("-inf"), "min": float("inf"), "bottom": float("inf")}


class Lowering:
    """The recursion, for one program.

    ``count`` asks for a nest that only counts what a workspace will hold, ``known`` for one that computes values at
    coordinates which the result has already.
    """

    def __init__(self, program: Program, count: bool = False, known: bool = False) -> None:
        self.program, self.count, self.known_result = program, count, known
        self.covered = not program.reduces_before  # is every place of a dense output written?
        self.units: Expr | None = None
        self.parts = False  # does each chunk of the units add up a result of its own?
        self.summed = program.statement.summed
        self.in_row = self.summing = False
        # depth at which a row of a sparse output begins; a row without a workspace is only there to be counted
        rows = program.output.kind == "rows" or program.scatters
        outer = set(program.output.vars[:-1])
        self.scope = max((d + 1 for d, v in enumerate(program.order) if v in outer), default=0) if rows else -1
        self.has_acc = program.settled < len(program.order) or (
            program.statement.reduce in ("max", "min", "top", "bottom") and bool(self.summed)
        )

    def nest(self) -> Nest:
        """Return the loop nest."""
        program = self.program
        stacks: dict[int, tuple[int, Expr]] = {
            k: (0, ZERO) for k, o in enumerate(program.operands) if isinstance(o, Stack)
        }
        body = self.resolve(State(program.tree, stacks, frozenset()), lambda s: self.loop(0, s))
        appends = program.output.kind in ("rows", "keys")
        return Nest(
            program.title(),
            params.arrays(program),
            params.sizes(program),
            body,
            program.value,
            self.units,
            params.weights(program) if self.units is not None else None,
            program.workspace if program.scatters else None,
            Var(names.size(program.output.vars[-1])) if program.scatters else ZERO,
            appends,
            (*program.order, *(d.var for d in program.derived)),
            program.long,
            self.parts and self.units is not None,
            program.ragged,
            self.known_result,
        )

    @property
    def covers(self) -> bool:
        """Does the nest write every place of a dense output, or every entry of a pattern?"""
        program = self.program
        if program.output.kind != "pattern":
            return self.covered and program.output.kind == "dense"
        stacks = [o for o in program.operands if isinstance(o, Stack)]
        padded = any(level.walk.real for o in stacks for level in o.levels) or any(d.guard for d in program.derived)
        once = len(stacks) == 1 and len(set(stacks[0].vars)) == len(stacks[0].vars)  # else only a diagonal is visited
        return once and not padded and not program.reduces_before

    # -- the recursion

    def loop(self, d: int, s: State) -> list[Stmt]:
        """Loops from the d-th variable on."""
        program = self.program
        if s.tree == NOTHING:
            return []
        if d == self.scope and not self.in_row:
            return self.row(d, s)
        if self.has_acc and d == program.settled and not self.summing:
            return self.accumulated(d, s)
        if d == len(program.order):
            return self.finish(s)
        var = program.order[d]
        its = [self.iterator(k, s) for k in operands(s.tree) if self.walks(k, var, s)]
        its = [it for it in its if it.operand == program.lead] or its
        points = needed(s.tree, frozenset(it.operand for it in its))
        if its and d < program.settled:
            self.covered = False
        role = self.role(var) if d == program.root else ""

        def inside(present: dict[int, Expr]) -> list[Stmt]:
            gone = frozenset(it.operand for it in its) - present.keys()
            at = {**s.at, **{k: (s.at[k][0] + 1, p) for k, p in present.items()}}
            return self.resolve(State(without(s.tree, gone), at, s.known | {var}), lambda t: self.loop(d + 1, t))

        if not its:
            strip = var == program.strip and len(program.order) > 1
            role = "strip" if strip else role
            end: Expr = Num(dict(program.turns)[var]) if var in dict(program.turns) else Var(names.size(var))
            self.units = end if role in ("units", "parts") else self.units
            turn = inside({})
            return [For(var, ZERO, end, turn, role)] if turn else []
        if len(its) == 1 and points == {frozenset({its[0].operand})}:
            it = its[0]
            self.units = Bin("-", it.end, it.begin) if role else self.units
            at: list[Stmt] = [] if it.at == Var(it.counter) else [Let(it.local("at"), it.at)]
            where = it.at if not at else Var(it.local("at"))
            body: list[Stmt] = [Let(var, it.coord(where)), *inside({it.operand: where})]
            body = body if it.real is None else [If(it.real(where), body)]
            return [For(it.counter, it.begin, it.end, [*at, *body], role)]
        return merge(var, its, points, inside, Var(names.size(var)))

    def role(self, var: str) -> str:
        """Say how threads share the loop over this variable: each turn writes places of its own, or adds to them."""
        program = self.program
        if program.output.kind == "pattern":
            return "units" if var in program.operands[program.output.like].vars else ""
        if var in program.out_vars:
            return "" if program.output.kind == "keys" and program.order[0] != var else "units"
        adds = program.output.kind == "dense" and program.statement.reduce in ("sum", "mean")
        self.parts = adds
        return "parts" if adds else ""

    def walks(self, k: int, var: str, s: State) -> bool:
        stack = self.program.operands[k]
        if not isinstance(stack, Stack) or s.at[k][0] == len(stack.levels):
            return False
        level = stack.levels[s.at[k][0]]
        return level.var == var and not level.full

    def iterator(self, k: int, s: State) -> Iterator:
        """Return the walk of operand k's next level, with this program's names in its expressions."""
        stack = self.program.operands[k]
        assert isinstance(stack, Stack)
        depth, p = s.at[k]
        level = stack.levels[depth]
        return walks.iterator(k, level, p, Var(names.size(level.var)))

    def resolve(self, s: State, then: Then) -> list[Stmt]:
        """Follow every index and position that is known by now, then continue."""
        for d in self.program.derived:
            if d.var not in s.known and all(v in s.known for v, _ in d.parts):
                value: Expr = ZERO
                for v, weight in d.parts:
                    value = add(value, mul(Var(v), Num(weight)))
                rest = self.resolve(s._replace(known=s.known | {d.var}), then)
                if d.guard:
                    rest = [If(Bin("<", Var(d.var), Var(names.size(d.var))), rest)]
                return [Let(d.var, value), *rest]
        for k in operands(s.tree):
            stack = self.program.operands[k]
            if not isinstance(stack, Stack) or s.at[k][0] == len(stack.levels):
                continue
            level = stack.levels[s.at[k][0]]
            if level.var not in s.known:
                continue
            return self.locate(k, s, then) if level.full else self.search(k, s, then)
        return then(s)

    def locate(self, k: int, s: State, then: Then) -> list[Stmt]:
        stack = self.program.operands[k]
        assert isinstance(stack, Stack)
        depth, p = s.at[k]
        level = stack.levels[depth]
        value = walks.located(level, p, Var(names.size(level.var)), Var(level.var))
        if isinstance(value, Var):
            return self.resolve(s._replace(at={**s.at, k: (depth + 1, value)}), then)
        own = names.local(k, level.number, "p")
        return [Let(own, value), *self.resolve(s._replace(at={**s.at, k: (depth + 1, Var(own))}), then)]

    def search(self, k: int, s: State, then: Then) -> list[Stmt]:
        stack = self.program.operands[k]
        assert isinstance(stack, Stack)
        depth = s.at[k][0]
        level, it = stack.levels[depth], self.iterator(k, s)
        if len(s.known & self.program.out_vars) < len(self.program.out_vars) or not self.summing:
            self.covered = False
        found = Find(it.counter, names.array(k, "crd", level.number), it.begin, it.end, Var(level.var))
        hit = self.resolve(s._replace(at={**s.at, k: (depth + 1, Var(it.counter))}), then)
        left = without(s.tree, frozenset({k}))
        miss = [] if left == NOTHING else self.resolve(s._replace(tree=left), then)
        return [found, If(Bin("<", Var(it.counter), it.end), hit, miss)] if hit or miss else []

    # -- where results go

    def row(self, d: int, s: State) -> list[Stmt]:
        """One row of a sparse output: all indices but the last are known. Entries are counted when it is complete."""
        program = self.program
        self.in_row = True
        body = self.loop(d, s)
        self.in_row = False
        if not body:
            return []
        last = program.output.vars[-1]
        if program.scatters:
            inside: Stmt = (
                Set(names.COUNT, ONE, "+=") if self.count else Append(results.coord(program, last), Var(names.DRAINED))
            )
            body = [*body, Drain(last, names.DRAINED, [inside])]
        if program.output.kind == "keys" or self.known_result:
            return body
        parent: Expr = ZERO
        for v in program.output.vars[:-1]:
            parent = add(mul(parent, Var(names.size(v))), Var(v))
        return [
            Let(names.FIRST, Var(names.COUNT)),
            *body,
            Store(names.OUT_COUNT, parent, Bin("-", Var(names.COUNT), Var(names.FIRST))),
        ]

    def accumulated(self, d: int, s: State) -> list[Stmt]:
        reduce = self.program.statement.reduce
        outer, inner = self.split(s) if reduce in ("sum", "mean") else ([], s.tree)
        self.summing = True
        body = self.loop(d, s._replace(tree=inner))
        self.summing = False
        if not body:
            return []
        total: Expr = Var(names.ACC)
        for factor in outer:  # what doesn't change in the sum is multiplied once, at its end
            total = Bin("*", total, results.value(self.program, factor, s.at))
        start = START.get(reduce, 0.0)
        out: list[Stmt] = [Acc(names.ACC, start), *body]
        if reduce in ("max", "min"):  # what is not stored is 0, and counts
            every: Expr = ONE
            for v in self.summed:
                every = mul(every, Var(names.size(v)))
            out = [
                Let(names.SEEN, ZERO, True),
                *out,
                If(Bin("<", Var(names.SEEN), every), [Into(names.ACC, Num(0.0), f"{reduce}=")]),
            ]
        elif self.program.output.kind in ("rows", "keys") and results.may_miss(body):
            # no entry where nothing was summed
            out = [Let(names.SEEN, ZERO, True), Acc(names.ACC, start), *results.marked(body)]
            written = results.put(self.program, total, s.at, self.count)
            return [*out, If(Bin("!=", Var(names.SEEN), ZERO), written)]
        return [*out, *results.put(self.program, total, s.at, self.count)]

    def split(self, s: State) -> tuple[list[Tree], Tree]:
        """Return the factors of the tree that are known before the sum, and the product of the others."""
        outer: list[Tree] = []
        inner: list[Tree] = []
        for factor in algebra.factors(s.tree):
            (outer if all(self.known(k, s) for k in operands(factor)) else inner).append(factor)
        outer = [f for f in outer if not (isinstance(f, Access) and f.stored)]
        return (outer, algebra.product(inner)) if inner else ([], s.tree)

    def known(self, k: int, s: State) -> bool:
        operand = self.program.operands[k]
        if isinstance(operand, Stack):
            return s.at[k][0] == len(operand.levels)
        return all(v in s.known for v in operand.vars)

    def finish(self, s: State) -> list[Stmt]:
        """The innermost statement."""
        value = results.value(self.program, s.tree, s.at)
        if self.has_acc:
            reduce = self.program.statement.reduce
            if reduce in ("max", "min"):
                return [Into(names.ACC, value, f"{reduce}="), Set(names.SEEN, ONE, "+=")]
            return [Into(names.ACC, value, {"top": "max=", "bottom": "min="}.get(reduce, "+="))]
        return results.put(self.program, value, s.at, self.count)


def lower(program: Program) -> Nest:
    """Return the loop nest of a program.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> from gossamer.compiler.language.program import Output, Strided
    >>> s = parse("ij,j->i", (2, 1))
    >>> operands = (Strided(("i", "j"), "j"), Strided(("j",), "j"))
    >>> p = Program(s, s.tree, operands, Output("dense", ("i",), "i"), ("i", "j"))
    >>> print(lower(p))
    # C[i] = sum over j of A[i, j] * B[j]
    # A dense(i, j), B dense(j); output dense(i)
    parallel for i in 0 .. i.size:
      out.acc = 0
      for j in 0 .. j.size:
        out.acc += A.val[i * A.s0 + j] * B.val[j]
      out[i] = out.acc
    """
    return Lowering(program).nest()
