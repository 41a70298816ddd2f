"""The words of a level in a loop nest: how it is walked, how a coordinate is located, what is written for an entry.

A level kind says that in expressions of its own few names (:class:`gossamer.formats.levels.Walk` and ``Store``). Here
they become expressions of a nest, for the kernels of expressions and for conversions alike.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from gossamer.compiler.language.program import LevelUse
from gossamer.compiler.loops import names
from gossamer.compiler.loops.merge import Iterator
from gossamer.compiler.loops.nest import ZERO, Bin, Expr, Load, Num, Store, Var, add, mul

_SIGNS = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "/", ast.Mod: "%",
    ast.RShift: ">>", ast.LShift: "<<", ast.BitAnd: "&", ast.BitXor: "^", ast.BitOr: "|",
    ast.Lt: "<", ast.GtE: ">=", ast.Gt: ">", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def read(text: str, names: Mapping[str, Expr], arrays: Mapping[str, str]) -> Expr:
    """Read an integer expression of a level, with expressions for its names and arrays for its arrays.

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import show
    >>> show(read("pos[p + 1]", {"p": Var("i")}, {"pos": "A.pos1"}))
    'A.pos1[i + 1]'
    """

    def node(n: ast.expr) -> Expr:
        if isinstance(n, ast.BinOp) and type(n.op) in _SIGNS:
            sign, left, right = _SIGNS[type(n.op)], node(n.left), node(n.right)
            if sign in "+*":
                return add(left, right) if sign == "+" else mul(left, right)
            return left if sign == "-" and right == ZERO else Bin(sign, left, right)
        if isinstance(n, ast.Compare) and len(n.ops) == 1 and type(n.ops[0]) in _SIGNS:
            return Bin(_SIGNS[type(n.ops[0])], node(n.left), node(n.comparators[0]))
        if isinstance(n, ast.Name) and n.id in names:
            return names[n.id]
        if isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name) and n.value.id in arrays:
            return Load(arrays[n.value.id], node(n.slice))
        if isinstance(n, ast.Constant) and type(n.value) is int:
            return Num(n.value)
        raise ValueError(f"a level has {text!r}; known names are {', '.join([*names, *arrays])}")

    return node(ast.parse(text, mode="eval").body)


def read_store(text: str, names: Mapping[str, Expr], arrays: Mapping[str, str]) -> Store:
    """Read what a level writes for an entry: an element of one of its arrays, a sign, a value.

    Examples
    --------
    >>> read_store("crd[at] = i", {"at": Var("B1.p"), "i": Var("B1.i")}, {"crd": "B.crd1"})
    Store(array='B.crd1', index=Var(name='B1.p'), value=Var(name='B1.i'), sign='=')
    """
    element, sign, value = text.partition(" ^= " if "^=" in text else " = ")
    place = read(element, names, arrays)
    if not isinstance(place, Load):
        raise ValueError(f"a level writes {text!r}, must be an element of one of its arrays")
    return Store(place.array, place.index, read(value, names, arrays), sign.strip())


def words(
    k: int, number: int, numbers: tuple[str, ...], arrays: tuple[tuple[str, str], ...]
) -> tuple[dict[str, Expr], dict[str, str]]:
    """Return what the integers and the arrays of a level are called in a nest, where it is one of operand k.

    Examples
    --------
    >>> words(1, 2, ("width",), (("crd", "int"),))
    ({'width': Var(name='B.width2')}, {'crd': 'B.crd2'})
    """
    known: dict[str, Expr] = {n: Var(names.array(k, n, number)) for n in numbers}
    return known, {a: names.array(k, a, number) for a, _ in arrays}


def iterator(k: int, level: LevelUse, p: Expr, size: Expr) -> Iterator:
    """Return the walk of operand k's level below position p; ``size`` is its number of coordinates."""
    known, arrays = words(k, level.number, level.numbers, level.arrays)
    known |= {"p": p, "size": size, "q": Var(names.local(k, level.number, "q"))}
    w = level.walk

    def expression(text: str) -> Callable[[Expr], Expr] | None:
        return (lambda where: read(text, {**known, "at": where}, arrays)) if text else None

    coord = expression(w.coord)
    assert coord is not None
    begin, end, at = (read(text, known, arrays) for text in (w.begin, w.end, w.at))
    return Iterator(k, level.number, begin, end, at, coord, expression(w.real), expression(w.kept))


def located(level: LevelUse, p: Expr, size: Expr, i: Expr) -> Expr:
    """Return the position of coordinate i below position p, in a level that has one for every coordinate."""
    return read(level.walk.locate, {"p": p, "size": size, "i": i}, {})
