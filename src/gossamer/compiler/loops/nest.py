"""Loop nests: what the compiler writes, before it is C.

A small language of integer and value expressions and a dozen statements. It prints as text
(``print(kernel.loops)``), ``loops.machine`` runs it, ``emit.c`` turns it into C.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# -- expressions


@dataclass(frozen=True)
class Num:
    """A number."""

    value: float | int


@dataclass(frozen=True)
class Var:
    """A variable: a size, a coordinate, a position, an accumulator."""

    name: str


@dataclass(frozen=True)
class Load:
    """An element of an array."""

    array: str
    index: Expr


@dataclass(frozen=True)
class Bin:
    """Two expressions and a sign between them."""

    sign: str
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Call:
    """A function of :data:`gossamer.compiler.language.functions.FUNCTIONS`, on values."""

    name: str
    args: tuple[Expr, ...]


Expr = Num | Var | Load | Bin | Call
ZERO, ONE = Num(0), Num(1)


def add(left: Expr, right: Expr) -> Expr:
    """Return left + right."""
    if left == ZERO:
        return right
    return left if right == ZERO else Bin("+", left, right)


def mul(left: Expr, right: Expr) -> Expr:
    """Return left * right, for integers."""
    if ZERO in (left, right):
        return ZERO
    if left == ONE:
        return right
    return left if right == ONE else Bin("*", left, right)


def both(conditions: Iterable[Expr]) -> Expr | None:
    """Return the condition that all hold; None if there are none."""
    out: Expr | None = None
    for condition in conditions:
        out = condition if out is None else Bin("&&", out, condition)
    return out


_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "%",
    ast.RShift: ">>", ast.BitAnd: "&",
    ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def read(text: str, names: Mapping[str, Expr], arrays: Mapping[str, str]) -> Expr:
    """Read an integer expression of a level's walk, with expressions for its names and arrays for its arrays.

    Examples
    --------
    >>> show(read("pos[p + 1]", {"p": Var("i")}, {"pos": "A.pos1"}))
    'A.pos1[i + 1]'
    """

    def node(n: ast.expr) -> Expr:
        if isinstance(n, ast.BinOp) and type(n.op) in _SIGNS:
            sign, left, right = _SIGNS[type(n.op)], node(n.left), node(n.right)
            if sign in "+*":
                return add(left, right) if sign == "+" else mul(left, right)
            return Bin(sign, left, right)
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _SIGNS:
            return Bin(_SIGNS[type(n.ops[0])], node(n.left), node(n.comparators[0]))
        if isinstance(n, ast.Name) and n.id in names:
            return names[n.id]
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id in arrays:
            return Load(arrays[n.value.id], node(n.slice))
        if isinstance(n, ast.Constant) and type(n.value) is int:
            return Num(n.value)
        raise ValueError(f"a level's walk has {text!r}; known names are {', '.join([*names, *arrays])}")

    return node(ast.parse(text, mode="eval").body)


def substituted(e: Expr, names: Mapping[str, Expr]) -> Expr:
    """Return an expression with others in the place of some names."""
    if isinstance(e, Var):
        return substituted(names[e.name], {n: x for n, x in names.items() if n != e.name}) if e.name in names else e
    if isinstance(e, Load):
        return Load(e.array, substituted(e.index, names))
    if isinstance(e, Bin):
        return Bin(e.sign, substituted(e.left, names), substituted(e.right, names))
    return Call(e.name, tuple(substituted(a, names) for a in e.args)) if isinstance(e, Call) else e


def names_in(e: Expr) -> set[str]:
    """Return the variables and arrays that an expression mentions."""
    if isinstance(e, Var):
        return {e.name}
    if isinstance(e, Load):
        return {e.array} | names_in(e.index)
    if isinstance(e, Call):
        return set().union(*map(names_in, e.args))
    return names_in(e.left) | names_in(e.right) if isinstance(e, Bin) else set()


# -- statements


@dataclass(frozen=True)
class Let:
    """Name an integer."""

    name: str
    value: Expr
    varies: bool = False  # it is set again later


@dataclass(frozen=True)
class Set:
    """Give an integer another value, or add to it."""

    name: str
    value: Expr
    sign: str = "="


@dataclass(frozen=True)
class Acc:
    """Begin an accumulator of values."""

    name: str
    start: float = 0.0


@dataclass(frozen=True)
class Into:
    """Add a value to an accumulator (or take the larger, or the smaller)."""

    name: str
    value: Expr
    sign: str = "+="


@dataclass(frozen=True)
class Store:
    """Write a value, or add it to what is there."""

    array: str
    index: Expr
    value: Expr
    sign: str = "="


@dataclass(frozen=True)
class For:
    """Count from begin to end.

    ``role``: "units" is shared among threads, and so is "parts", whose results are added up at the end; "strip" runs
    over lanes of vectors.
    """

    var: str
    begin: Expr
    end: Expr
    body: list[Stmt] = field(default_factory=list)
    role: str = ""


@dataclass(frozen=True)
class While:
    """Repeat while a condition holds."""

    condition: Expr
    body: list[Stmt] = field(default_factory=list)


@dataclass(frozen=True)
class If:
    """Choose."""

    condition: Expr
    body: list[Stmt] = field(default_factory=list)
    other: list[Stmt] = field(default_factory=list)


@dataclass(frozen=True)
class Find:
    """Name the counter in begin .. end whose coordinate is that one (ascending there), or ``end``."""

    name: str
    array: str
    begin: Expr
    end: Expr
    coord: Expr


@dataclass(frozen=True)
class Scatter:
    """Add a value at a coordinate of the workspace."""

    coord: Expr
    value: Expr


@dataclass(frozen=True)
class Drain:
    """Visit what the workspace holds, in ascending order, and leave it empty."""

    var: str
    value: str
    body: list[Stmt] = field(default_factory=list)


@dataclass(frozen=True)
class Append:
    """Put an entry at the end of the output: the next coordinate (or key) and its value."""

    coord: Expr
    value: Expr


Stmt = Let | Set | Acc | Into | Store | For | While | If | Find | Scatter | Drain | Append


@dataclass(frozen=True)
class Nest:
    """A loop nest with its parameters: arrays (name, type) and integers, all read in this order.

    ``units`` is what threads share: the range of the loop with that role, None if there is none; ``weights`` is an
    array that counts the work before each unit; ``workspace`` is None, "dense", "wide" or "hash", over
    ``workspace_size`` coordinates.
    """

    title: str
    arrays: tuple[tuple[str, str], ...]
    sizes: tuple[str, ...]
    body: list[Stmt]
    value: str  # C type of the values
    units: Expr | None = None
    weights: str | None = None
    workspace: str | None = None
    workspace_size: Expr = ZERO
    appends: bool = False
    indices: tuple[str, ...] = ()  # variables that are indices; all others have a dot in their names
    long: bool = False  # may a sum have so many terms that it must be made of blocks?
    parts: bool = False  # each chunk of the units writes a result of its own: they are to be added up

    def __str__(self) -> str:
        lines = [f"# {line}" for line in self.title.splitlines()]
        if self.workspace:
            lines.append(f"# workspace: {self.workspace}, {show(self.workspace_size)} coordinates")
        return "\n".join([*lines, *_lines(self.body)])


def show(e: Expr, outer: str = "") -> str:
    """Return an expression as text."""
    if isinstance(e, Num):
        return f"{e.value:g}" if isinstance(e.value, float) else str(e.value)
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Load):
        return f"{e.array}[{show(e.index)}]"
    if isinstance(e, Call):
        return f"{e.name}({', '.join(show(a) for a in e.args)})"
    sign = {"&&": "and", "||": "or"}.get(e.sign, e.sign)
    text = f"{show(e.left, e.sign)} {sign} {show(e.right, e.sign)}"
    if e.sign in ("min", "max"):
        return f"{e.sign}({show(e.left)}, {show(e.right)})"
    tight = {"*": 5, "/": 5, "%": 5, "+": 4, "-": 4, ">>": 3, "&": 2}
    return f"({text})" if tight.get(outer, 0) > tight.get(e.sign, 1) or (outer in "/%-" and outer) else text


def _lines(body: list[Stmt], depth: int = 0) -> list[str]:
    pad, out = "  " * depth, []
    for s in body:
        if isinstance(s, For):
            role = {"units": "parallel ", "parts": "in parts ", "strip": "in strips "}.get(s.role, "")
            out.append(f"{pad}{role}for {s.var} in {show(s.begin)} .. {show(s.end)}:")
        elif isinstance(s, While):
            out.append(f"{pad}while {show(s.condition)}:")
        elif isinstance(s, If):
            out += [f"{pad}if {show(s.condition)}:", *_lines(s.body, depth + 1)]
            if s.other:
                out += [f"{pad}else:", *_lines(s.other, depth + 1)]
        elif isinstance(s, Drain):
            out.append(f"{pad}for {s.var}, {s.value} in workspace:")
        else:
            out.append(pad + _line(s))
        if isinstance(s, (For, While, Drain)):
            out += _lines(s.body, depth + 1)
    return out


def _line(s: Stmt) -> str:
    if isinstance(s, Let):
        return f"{s.name} = {show(s.value)}"
    if isinstance(s, (Set, Into)):
        return f"{s.name} {s.sign} {show(s.value)}"
    if isinstance(s, Acc):
        return f"{s.name} = {s.start:g}"
    if isinstance(s, Store):
        return f"{s.array}[{show(s.index)}] {s.sign} {show(s.value)}"
    if isinstance(s, Find):
        return f"{s.name} = find {show(s.coord)} in {s.array}[{show(s.begin)} .. {show(s.end)}]"
    if isinstance(s, Scatter):
        return f"workspace[{show(s.coord)}] += {show(s.value)}"
    assert isinstance(s, Append)
    return f"append {show(s.coord)}, {show(s.value)}"
