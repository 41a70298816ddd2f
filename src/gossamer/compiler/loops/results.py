"""What is computed in a nest, and where it goes: the value of a tree, its place in the output, sums without a turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gossamer.compiler.language.program import Program, Strided
from gossamer.compiler.language.tree import Access, Const, Tree, operand_name
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Append,
    Bin,
    Call,
    Expr,
    Find,
    For,
    If,
    Into,
    Load,
    Num,
    Scatter,
    Set,
    Stmt,
    Store,
    Var,
    While,
    add,
    mul,
)

At = Mapping[int, tuple[int, Expr]]  # how deep each stack is walked, and its position there


def strided(name: str, vars: tuple[str, ...], unit: str | None) -> Expr:
    """Return the place of these indices in an ordinary tensor."""
    index: Expr = ZERO
    for d, v in enumerate(vars):
        if v != unit:
            index = add(index, mul(Var(v), Var(names.stride(name, d))))
    return index if unit is None else add(index, Var(unit))


def value(program: Program, tree: Tree, at: At) -> Expr:
    """Return the tree as an expression over loaded values."""
    if isinstance(tree, Const):
        return Num(float(tree.value))
    if isinstance(tree, Access):
        operand, name = program.operands[tree.operand], operand_name(tree.operand)
        if tree.stored:
            return Num(1.0)
        if isinstance(operand, Strided):
            return Load(names.values(tree.operand), strided(name, operand.vars, operand.unit))
        return Load(names.values(tree.operand), at[tree.operand][1])
    args = tuple(value(program, arg, at) for arg in tree.args)
    if tree.name == "*" and Num(1.0) in args:
        return args[1] if args[0] == Num(1.0) else args[0]
    if tree.name == "plus":
        return Bin("+", *args)
    return Bin(tree.name, *args) if tree.name in ("+", "-", "*") else Call(tree.name, args)


def coord(program: Program, last: str) -> Expr:
    """Return what an entry is appended by: its last coordinate, or its number."""
    if program.output.kind == "rows":
        return Var(last)
    key: Expr = ZERO
    for v, name in zip(program.output.vars, (*program.output.vars[:-1], last), strict=True):
        key = add(mul(key, Var(names.size(v))), Var(name))
    return key


def put(program: Program, found: Expr, at: At, count: bool) -> list[Stmt]:
    """Write a finished value to its place."""
    out = program.output
    sign = "+=" if program.reduces_before else "="
    if program.statement.reduce == "mean":
        for v in program.statement.summed:
            found = Bin("/", found, Var(names.size(v)))
    if program.pieces:
        return _piece(program, found)
    if out.kind == "dense":
        return [Store(names.OUT, strided(names.OUT, out.vars, out.unit), found, sign)]
    if out.kind == "pattern":
        return [Store(names.OUT, at[out.like][1], found, sign)]
    if program.scatters:
        return [Scatter(Var(out.vars[-1]), Num(0.0) if count else found)]
    return [Append(coord(program, out.vars[-1]), found)]


def _piece(program: Program, found: Expr) -> list[Stmt]:
    """Write the sum of a piece: to its place, or to a slot of its own if its row has others."""
    out = program.output
    slot = Load(names.array(program.lead, "slot", 0), Var(names.local(program.lead, 0, "q")))
    whole = Store(names.OUT, strided(names.OUT, out.vars, out.unit), found)
    part = add(mul(slot, Var(names.TOTAL)), strided(names.PART, program.free, out.unit))
    return [If(Bin("<", slot, ZERO), [whole], [Store(names.PART, part, found)])]


def may_miss(body: list[Stmt]) -> bool:
    """May these loops end without a turn of the innermost? (Counted ones run over all coordinates.)"""
    return any(
        isinstance(x, (While, If, Find)) or (isinstance(x, For) and (x.begin != ZERO or may_miss(x.body))) for x in body
    )


def marked(body: list[Stmt]) -> list[Stmt]:
    """Say after each sum that there was one."""
    out: list[Stmt] = []
    for x in body:
        if isinstance(x, (For, While)):
            x = replace(x, body=marked(x.body))
        elif isinstance(x, If):
            x = replace(x, body=marked(x.body), other=marked(x.other))
        out += [x, Set(names.SEEN, ONE)] if isinstance(x, Into) else [x]
    return out
