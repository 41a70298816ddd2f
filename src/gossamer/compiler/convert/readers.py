"""Nests that read entries: from the levels of a stack, from numbers, or from what is not zero in a dense tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.language.program import LevelUse
from gossamer.compiler.loops import names, walks
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Bin,
    Blank,
    Expr,
    For,
    If,
    Let,
    Load,
    Nest,
    Num,
    Set,
    Stmt,
    Stop,
    Store,
    Var,
    add,
    mul,
)
from gossamer.compiler.loops.uses import routine

UNSIGNED = "unsigned long"  # of coordinates: they are divided, and by a constant that takes fewer steps without a sign


@dataclass(frozen=True)
class Walked:
    """A stack of levels as a source of entries; ``dims`` has the dimension of each level and its weight there.

    ``guards`` are dimensions that padding may leave; ``order`` is in which order the levels are walked; ``known`` has
    the sizes of the small ones (0: it is only known when it runs), so that their loops are unrolled.
    """

    levels: tuple[LevelUse, ...]
    dims: tuple[tuple[int, int], ...]
    guards: frozenset[int]
    order: tuple[int, ...]
    known: tuple[int, ...]

    def types(self) -> dict[str, str]:
        """Return the arrays of its levels in a nest, and their types."""
        return {names.array(0, a, n): ctype for n, level in enumerate(self.levels) for a, ctype in level.arrays}

    def size(self, n: int) -> Expr:
        """Return how many coordinates level n has."""
        return Num(self.known[n]) if self.known[n] else Var(names.array(0, "size", n))

    def coordinate(self, n: int) -> Expr:
        """Return the coordinate of level n."""
        return Var(names.local(0, n, "i"))

    def coordinates(self, name: str) -> list[Let]:
        """Return the statements that make coordinates of dimensions from those of levels."""
        sums: list[Expr] = [ZERO] * (max(d for d, _ in self.dims) + 1)
        for n, (dim, weight) in enumerate(self.dims):
            sums[dim] = add(sums[dim], mul(self.coordinate(n), Num(weight)))
        return [Let(f"{name}{d}", value, type=UNSIGNED) for d, value in enumerate(sums)]


def walk(source: Walked, name: str, inside: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
    """Return the loops that come to every entry: its coordinates are ``name`` 0, 1, ..., ``inside`` has its position.

    A level that has a place for every coordinate may be walked before those above it: it then counts coordinates, and
    is located when the position above is known. So is one of a known size, whose loop is then unrolled.
    """

    def loops(k: int, at: tuple[Expr, ...]) -> list[Stmt]:
        """Loops from the k-th on, where the positions at the first levels are known."""
        if k == len(source.order):
            return entry(at[-1])
        n = source.order[k]
        above = ZERO if n == 0 else at[n - 1] if n <= len(at) else None
        counter, i = names.local(0, n, "q"), names.local(0, n, "i")
        if above is None or source.known[n]:
            return [For(counter, ZERO, source.size(n), [Let(i, Var(counter), type=UNSIGNED), *located(k, at)])]
        it = walks.iterator(0, source.levels[n], above, source.size(n))
        where = it.at if it.at == Var(counter) else Var(it.local("at"))
        body = [Let(i, it.coord(where), type=UNSIGNED), *located(k, (*at, where))]
        body = body if it.kept is None else [If(it.kept(where), body)]
        ends: list[Stmt] = [Stop()] if source.levels[n].walk.ordered else []
        body = body if it.real is None else [If(it.real(where), body, ends)]
        return [For(counter, it.begin, it.end, body if where == it.at else [Let(it.local("at"), it.at), *body])]

    def located(k: int, at: tuple[Expr, ...]) -> list[Stmt]:
        """The position at the next level, if its coordinate is known by now; then the loops below the k-th."""
        m = len(at)
        if m not in source.order[: k + 1]:
            return loops(k + 1, at)
        place = names.local(0, m, "at")
        where = walks.located(source.levels[m], at[-1] if m else ZERO, source.size(m), source.coordinate(m))
        return [Let(place, where), *located(k, (*at, Var(place)))]

    def entry(where: Expr) -> list[Stmt]:
        body = inside(where)
        for d, let in reversed(list(enumerate(source.coordinates(name)))):
            guarded = [If(Bin("<", Var(f"{name}{d}"), Var(f"A.dim{d}")), body)] if d in source.guards else body
            body = [let, *guarded]
        return body

    return loops(0, ())


def keyed(target: Sequence[Cut], key: str) -> list[Stmt]:
    """Return the statements that name ``now`` the key of an entry with coordinates x0, x1, ...

    Its fields are the coordinates of the target's levels, side by side. They are as wide as the key: wider ones would
    take more registers.
    """
    fields = [Let(f"now.{m}", cut.coordinate(), type=f"unsigned {key}") for m, cut in enumerate(target)]
    now: Expr = ZERO
    for m, field in enumerate(fields):
        shifted = Bin("<<", Var(field.name), Var(names.array(1, "shift", m)))
        now = Bin("|", now, shifted) if m else shifted
    return [*fields, Let("now", now, type=f"unsigned {key}")]


def _regrouped(dims: int) -> list[Stmt]:
    """From a row-major number to the dimensions of the target."""
    out: list[Stmt] = []
    for d in range(dims - 1, 0, -1):
        size = Var(f"B.dim{d}")
        out += [Let(f"x{d}", Bin("%", Var("number"), size), type=UNSIGNED)]
        out += [Set("number", Bin("/", Var("number"), size))]
    return [*out, Let("x0", Var("number"), type=UNSIGNED)]


def reader(source: Walked, target: Sequence[Cut], regroup: int, key: str, index: str | None) -> Nest:
    """Return the nest that reads a stack of levels: the key of each entry and, if ``index`` is given, where it was.

    ``regroup`` is the number of the target's dimensions where they are others, and 0 where they are the same.
    """

    def inside(at: Expr) -> list[Stmt]:
        body = [*numbered, *keyed(target, key), Store("key", Var("n"), Var("now"))]
        if index:
            body.append(Store("where", Var("n"), at))
        return [*body, Set("n", ONE, "+=")]

    numbered: list[Stmt] = []
    if regroup:
        number: Expr = Var("y0")
        for d in range(1, max(d for d, _ in source.dims) + 1):
            number = add(mul(number, Var(f"A.dim{d}")), Var(f"y{d}"))
        numbered = [Let("number", number, True, UNSIGNED), *_regrouped(regroup)]
    body = [Let("n", ZERO, True), *walk(source, "y" if regroup else "x", inside)]
    types = {**source.types(), "key": f"unsigned {key}", "where": index or "int"}
    return routine("the keys of entries", body, types, "n")


def number_reader(dims: int, target: Sequence[Cut], key: str) -> Nest:
    """Return the nest that reads row-major numbers in any order; it returns whether one is not above the last."""
    number = Load("numbers", Var("k"))
    turn: list[Stmt] = [
        If(Bin("<=", number, Var("last")), [Set("falls", ONE)]),
        Set("last", number),
        Let("number", number, True, UNSIGNED),
        *_regrouped(dims),
        *keyed(target, key),
        Store("key", Var("k"), Var("now")),
    ]
    body: list[Stmt] = [Let("last", Num(-1), True), Let("falls", ZERO, True), For("k", ZERO, Var("n"), turn)]
    types = {"numbers": "long", "key": f"unsigned {key}"}
    return routine("the keys of numbers", body, types, "falls")


_BLOCK = 64  # bytes that are looked at together
_BYTES = {"float": 4, "double": 8, "int": 4, "long": 8, "short": 2, "char": 1}


def nonzero(ctype: str, at: Expr) -> Expr:
    """Is the value at a place not zero? Those of two numbers are complex, and halves are looked at as bits.

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import show
    >>> show(nonzero("float", Var("k"))), show(nonzero("float 2", Var("k")))
    ('values[k] != 0', '(values[k * 2] != 0) | (values[k * 2 + 1] != 0)')
    """
    if ctype.endswith(" 2"):
        first = mul(at, Num(2))
        return Bin("|", _differs(Load("values", first)), _differs(Load("values", add(first, ONE))))
    if ctype == "half":
        return _differs(Bin("&", Load("values", at), Num(0x7FFF)))
    return _differs(Load("values", at))


def _differs(e: Expr) -> Expr:
    return Bin("!=", e, ZERO)


def _value(ctype: str) -> tuple[str, int]:
    """The type in C of the numbers of a value, and how many they are."""
    return "unsigned short" if ctype == "half" else ctype.removesuffix(" 2"), 2 if ctype.endswith(" 2") else 1


def dense_reader(ctype: str, dims: int, target: Sequence[Cut], key: str, index: str) -> Nest:
    """Return the nest that reads what is not zero in a contiguous tensor: the key of each, and where it was.

    Keys are written for zeros too, and then overwritten by the next: there is one more than there are entries.
    """
    number, per = _value(ctype)
    step = _BLOCK // (_BYTES[number.split()[-1]] * per)
    x, last = f"x{dims - 1}", Var(f"B.dim{dims - 1}")

    def entries(begin: Expr, end: Expr, role: str = "") -> Stmt:
        at = add(Var("row"), Var(f"{x}.q"))
        turn: list[Stmt] = [
            Let(x, Var(f"{x}.q"), type=UNSIGNED),
            *keyed(target, key),
            Store("key", Var("n"), Var("now")),
            Store("where", Var("n"), at),
            Set("n", nonzero(ctype, at), "+="),
        ]
        return For(f"{x}.q", begin, end, turn, role)

    first = mul(Var("block"), Num(step))
    some: list[Stmt] = [
        Blank("none", "values", mul(add(Var("row"), first), Num(per)), step * per),
        If(Bin("==", Var("none"), ZERO), [entries(first, add(first, Num(step)), "unroll")]),
    ]
    full = Bin("/", last, Num(step))
    body = [For("block", ZERO, full, some), entries(mul(full, Num(step)), last), Set("row", last, "+=")]
    for d in reversed(range(dims - 1)):
        body = [For(f"x{d}.q", ZERO, Var(f"B.dim{d}"), [Let(f"x{d}", Var(f"x{d}.q"), type=UNSIGNED), *body])]
    types = {"values": number, "key": f"unsigned {key}", "where": index}
    return routine("the keys of nonzeros", [Let("row", ZERO, True), Let("n", ZERO, True), *body], types, "n")


def counter(ctype: str) -> Nest:
    """Return the nest that counts what is not zero."""
    body: list[Stmt] = [Let("n", ZERO, True)]
    body.append(For("k", ZERO, Var("places"), [Set("n", nonzero(ctype, Var("k")), "+=")]))
    return routine("how many nonzeros", body, {"values": _value(ctype)[0]}, "n")
