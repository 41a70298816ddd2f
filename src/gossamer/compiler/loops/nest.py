"""Loop nests: what the compiler writes, before it is C.

A small language of integer and value expressions and a dozen statements, for the kernels of expressions
(``loops.lower``) and for conversions between formats (``compiler.convert``). It prints as text
(``print(kernel.loops)``), ``loops.machine`` runs it, ``emit.c`` turns it into C.
"""

from __future__ import annotations

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
    type: str = "long"  # in C; the interpreter's integers have no width


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
    over lanes of vectors; "unroll" takes a few turns at once.
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
    """Visit what the workspace holds, in ascending order, and leave it empty; without a name, values are not read."""

    var: str
    value: str
    body: list[Stmt] = field(default_factory=list)


@dataclass(frozen=True)
class Append:
    """Put an entry at the end of the output: the next coordinate (or key) and its value."""

    coord: Expr
    value: Expr


@dataclass(frozen=True)
class Blank:
    """Name whether the elements of an array from an index on, 64 bytes of them, have no bit that is set."""

    name: str
    array: str
    index: Expr
    count: int


@dataclass(frozen=True)
class Stop:
    """Leave the innermost loop."""


@dataclass(frozen=True)
class Prefetch:
    """Ask for the memory of an element that is written soon."""

    array: str
    index: Expr


Stmt = Let | Set | Acc | Into | Store | For | While | If | Find | Scatter | Drain | Append | Blank | Stop | Prefetch


@dataclass(frozen=True)
class Nest:
    """A loop nest with its parameters: arrays (name, type) and integers, all read in this order.

    ``units`` is what threads share: the range of the loop with that role, None if there is none; ``weights`` is an
    array that counts the work before each unit; ``workspace`` is None, "dense", "wide" or "hash", or "bits" if it holds
    coordinates without values, over ``workspace_size`` coordinates.
    """

    title: str
    arrays: tuple[tuple[str, str], ...]
    sizes: tuple[str, ...]
    body: list[Stmt]
    value: str = ""  # C type of the values; conversions compute none
    units: Expr | None = None
    weights: str | None = None
    workspace: str | None = None
    workspace_size: Expr = ZERO
    appends: bool = False
    indices: tuple[str, ...] = ()  # variables that are indices; all others have a dot in their names
    long: bool = False  # may a sum have so many terms that it must be made of blocks?
    parts: bool = False  # each chunk of the units writes its own result; the caller adds them up
    ragged: bool = False  # do the lengths of rows change from one to the next?
    known: bool = False  # are the coordinates of a sparse result given, and its values alone computed?
    result: str = ""  # the variable that is returned, if one is

    def __str__(self) -> str:
        lines = [f"# {line}" for line in self.title.splitlines()]
        if self.workspace:
            lines.append(f"# workspace: {self.workspace}, {show(self.workspace_size)} coordinates")
        lines += ["# the coordinates of the result are given"] if self.known else []
        lines += _lines(self.body)
        return "\n".join([*lines, f"return {self.result}"] if self.result else lines)


#: How tightly signs bind; those that are not here bind least.
_TIGHT = {"*": 7, "/": 7, "%": 7, "+": 6, "-": 6, ">>": 5, "<<": 5, "&": 4, "^": 3, "|": 2}


def show(e: Expr, outer: str = "", right: bool = False) -> str:
    """Return an expression as text, with brackets where it is an operand of ``outer``, perhaps the right one."""
    if isinstance(e, Num):
        return f"{e.value:g}" if isinstance(e.value, float) else str(e.value)
    if isinstance(e, Var):
        return e.name
    if isinstance(e, Load):
        return f"{e.array}[{show(e.index)}]"
    if isinstance(e, Call):
        return f"{e.name}({', '.join(show(a) for a in e.args)})"
    sign = {"&&": "and", "||": "or"}.get(e.sign, e.sign)
    text = f"{show(e.left, e.sign)} {sign} {show(e.right, e.sign, True)}"
    if e.sign in ("min", "max"):
        return f"{e.sign}({show(e.left)}, {show(e.right)})"
    own, around = _TIGHT.get(e.sign, 1), _TIGHT.get(outer, 0)
    shifts = outer in (">>", "<<")
    regroups = right and own == around and (shifts or e.sign in ("/", "%"))  # i * (j / 2), not (i * j) / 2
    return f"({text})" if around > own or regroups or outer in ("/", "%", "-") else text


_ROLES = {"": "", "units": "parallel ", "parts": "in parts ", "strip": "in strips ", "unroll": "unrolled "}


def _lines(body: list[Stmt], depth: int = 0) -> list[str]:
    pad, out = "  " * depth, []
    for s in body:
        if isinstance(s, For):
            out.append(f"{pad}{_ROLES[s.role]}for {s.var} in {show(s.begin)} .. {show(s.end)}:")
        elif isinstance(s, While):
            out.append(f"{pad}while {show(s.condition)}:")
        elif isinstance(s, If):
            out += [f"{pad}if {show(s.condition)}:", *_lines(s.body, depth + 1)]
            if s.other:
                out += [f"{pad}else:", *_lines(s.other, depth + 1)]
        elif isinstance(s, Drain):
            out.append(f"{pad}for {f'{s.var}, {s.value}' if s.value else s.var} in workspace:")
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
    if isinstance(s, Blank):
        return f"{s.name} = {s.array}[{show(s.index)} .. + {s.count}] is blank"
    if isinstance(s, Stop):
        return "stop"
    if isinstance(s, Prefetch):
        return f"prefetch {s.array}[{show(s.index)}]"
    assert isinstance(s, Append)
    return f"append {show(s.coord)}, {show(s.value)}"
