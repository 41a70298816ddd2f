"""What is computed at one point of the index space: a tree of operands, numbers and functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Access:
    """The value of an operand here; with ``stored``, 1 wherever it has an entry.

    Examples
    --------
    >>> print(Access(0), Access(1, stored=True))
    A [B]
    """

    operand: int
    stored: bool = False

    def __str__(self) -> str:
        return show(self)


@dataclass(frozen=True)
class Const:
    """A number."""

    value: float | int

    def __str__(self) -> str:
        return show(self)


@dataclass(frozen=True)
class Op:
    """A function of other trees.

    Examples
    --------
    >>> print(Op("*", (Access(0), Op("relu", (Op("-", (Access(1), Const(2))),)))))
    A * relu(B - 2)
    """

    name: str
    args: tuple[Tree, ...]

    def __str__(self) -> str:
        return show(self)


Tree = Access | Const | Op
ZERO, ONE = Const(0.0), Const(1.0)


def operand_name(k: int) -> str:
    """Return the letter of an operand: A, B, ...

    Examples
    --------
    >>> operand_name(0), operand_name(27)
    ('A', 'B1')
    """
    return chr(65 + k % 26) + (str(k // 26) if k >= 26 else "")


def show(tree: Tree, indices: Sequence[tuple[str, ...]] = ()) -> str:
    """Return a tree as text, with the indices of its operands if they are given.

    Examples
    --------
    >>> show(Op("*", (Access(0), Access(1))), (("i", "B"), ("B",)))
    'A[i, B] * B[B]'
    """
    if isinstance(tree, Const):
        return f"{tree.value:g}"
    if isinstance(tree, Access):
        name = operand_name(tree.operand)
        name += f"[{', '.join(indices[tree.operand])}]" if indices else ""
        return f"[{name}]" if tree.stored else name
    return spelled(tree, [show(arg, indices) for arg in tree.args])


_STRENGTH = {"<": 0, ">": 0, "<=": 0, ">=": 0, "==": 0, "!=": 0, "+": 1, "-": 1, "*": 2, "/": 2}


def spelled(tree: Op, args: Sequence[str], exactly: bool = False) -> str:
    """Return a function of arguments that are text already; ``exactly``: so that reading it gives the same tree.

    Examples
    --------
    >>> spelled(Op("-", (Access(0), Op("+", (Access(1), Access(2))))), ["A", "B + C"])
    'A - (B + C)'
    """
    own = _STRENGTH.get(tree.name)
    if own is None:
        return f"{tree.name}({', '.join(args)})"
    sides = []
    for n, (arg, text) in enumerate(zip(tree.args, args, strict=True)):
        inner = _STRENGTH.get(arg.name, 9) if isinstance(arg, Op) else 9
        weak = inner < own or (inner == own and (own == 0 or (n and (exactly or tree.name in "-/"))))
        sides.append(f"({text})" if weak else text)
    return f" {tree.name} ".join(sides)
