"""What is computed at one point of the index space: a tree of operands, numbers and functions.

Three questions are asked of a tree, and each is a short recursion here: what is left of it where some operands are
zero (:func:`without`), how it changes with one operand (:func:`derivative`), and what it is worth (:func:`evaluate`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
        name = operand_name(self.operand)
        return f"[{name}]" if self.stored else name


@dataclass(frozen=True)
class Const:
    """A number."""

    value: float

    def __str__(self) -> str:
        return f"{self.value:g}"


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
        if self.name in ("+", "-", "*"):
            sides = [
                f"({a})" if isinstance(a, Op) and a.name in ("+", "-") and self.name != "+" else str(a)
                for a in self.args
            ]
            return f" {self.name} ".join(sides)
        return f"{self.name}({', '.join(map(str, self.args))})"


Tree = Access | Const | Op
ZERO, ONE = Const(0.0), Const(1.0)


@dataclass(frozen=True)
class Function:
    """A function that expressions may use: its value in torch and in C, and its slope.

    ``c`` has {0} and {1} for its arguments and {f} for the suffix of C's functions of that type. A slope is a tree over
    the arguments, one for each. Every function here is 0 where all its arguments are.
    """

    torch: Callable[..., Tensor]
    c: str
    slopes: Callable[..., tuple[Tree, ...]]
    arity: int = 1
    public: bool = True


def _op(name: str, *args: Tree) -> Tree:
    return Op(name, args)


FUNCTIONS: dict[str, Function] = {
    "+": Function(torch.add, "({0} + {1})", lambda a, b: (ONE, ONE), 2, False),
    "-": Function(torch.sub, "({0} - {1})", lambda a, b: (ONE, Const(-1.0)), 2, False),
    "*": Function(torch.mul, "({0} * {1})", lambda a, b: (b, a), 2, False),
    "max": Function(
        torch.maximum, "({0} > {1} || {0} != {0} ? {0} : {1})", lambda a, b: (_op("above", a, b), _op("above", b, a)), 2
    ),
    "min": Function(
        torch.minimum, "({0} < {1} || {0} != {0} ? {0} : {1})", lambda a, b: (_op("above", b, a), _op("above", a, b)), 2
    ),
    "neg": Function(torch.neg, "(-{0})", lambda a: (Const(-1.0),)),
    "abs": Function(torch.abs, "({0} < 0 ? -{0} : {0})", lambda a: (_op("sign", a),)),
    "sign": Function(torch.sign, "(({0} > 0) - ({0} < 0))", lambda a: (ZERO,)),
    "square": Function(torch.square, "({0} * {0})", lambda a: (_op("*", Const(2.0), a),)),
    "relu": Function(torch.relu, "({0} < 0 ? 0 : {0})", lambda a: (_op("positive", a),)),
    "sqrt": Function(torch.sqrt, "sqrt{f}({0})", lambda a: (_op("half_over", _op("sqrt", a)),)),
    "sin": Function(torch.sin, "sin{f}({0})", lambda a: (_op("cosine", a),)),
    "tanh": Function(torch.tanh, "tanh{f}({0})", lambda a: (_op("-", ONE, _op("square", _op("tanh", a))),)),
    "expm1": Function(torch.expm1, "expm1{f}({0})", lambda a: (_op("+", _op("expm1", a), ONE),)),
    "log1p": Function(torch.log1p, "log1p{f}({0})", lambda a: (_op("inverse", _op("+", ONE, a)),)),
    "exp": Function(torch.exp, "exp{f}({0})", lambda a: (_op("exp", a),), 1, False),
    # what slopes need: not functions of an expression, because they are not 0 at 0
    "positive": Function(lambda a: (a > 0).to(a.dtype), "({0} > 0)", lambda a: (ZERO,), 1, False),
    "above": Function(
        lambda a, b: (a > b).to(a.dtype) + (a == b).to(a.dtype) / 2,
        "(({0} > {1}) + ({0} == {1}) * 0.5{f})",
        lambda a, b: (ZERO, ZERO),
        2,
        False,
    ),
    "cosine": Function(torch.cos, "cos{f}({0})", lambda a: (_op("neg", _op("sin", a)),), 1, False),
    "inverse": Function(
        torch.reciprocal, "(1 / {0})", lambda a: (_op("neg", _op("square", _op("inverse", a))),), 1, False
    ),
    "half_over": Function(
        lambda a: 0.5 / a,
        "(0.5{f} / {0})",
        lambda a: (_op("*", Const(-2.0), _op("square", _op("half_over", a))),),
        1,
        False,
    ),
}  # fmt: skip
_NOT_ZERO_AT_ZERO = {"exp", "positive", "above", "cosine", "inverse", "half_over"}


def operand_name(k: int) -> str:
    """Return the letter of an operand: A, B, ...

    Examples
    --------
    >>> operand_name(0), operand_name(27)
    ('A', 'B1')
    """
    return chr(65 + k % 26) + (str(k // 26) if k >= 26 else "")


def product(trees: Sequence[Tree]) -> Tree:
    """Multiply trees, leaving out ones.

    Examples
    --------
    >>> print(product([Access(0), ONE, Access(2)]))
    A * C
    """
    factors = [t for t in trees if t != ONE]
    out: Tree = factors[0] if factors else ONE
    for factor in factors[1:]:
        out = _op("*", out, factor)
    return ZERO if any(f == ZERO for f in factors) else out


def factors(tree: Tree) -> list[Tree]:
    """Return the factors of a product.

    Examples
    --------
    >>> [str(f) for f in factors(Op("*", (Op("*", (Access(0), Const(2.0))), Op("+", (Access(1), Access(2))))))]
    ['A', '2', 'B + C']
    """
    if isinstance(tree, Op) and tree.name == "*":
        return [f for arg in tree.args for f in factors(arg)]
    return [tree]


def operands(tree: Tree) -> list[int]:
    """Return the operands of a tree, each once, in order."""
    if isinstance(tree, Access):
        return [tree.operand]
    return [] if isinstance(tree, Const) else list(dict.fromkeys(k for arg in tree.args for k in operands(arg)))


def without(tree: Tree, zero: frozenset[int]) -> Tree:
    """Return what is left of a tree where these operands are zero.

    Examples
    --------
    >>> tree = Op("+", (Op("*", (Access(0), Access(1))), Access(2)))
    >>> print(without(tree, frozenset({1})))
    C
    """
    if isinstance(tree, Access):
        return ZERO if tree.operand in zero else tree
    if isinstance(tree, Const):
        return tree
    args = tuple(without(arg, zero) for arg in tree.args)
    if tree.name == "*" and ZERO in args:
        return ZERO
    if tree.name in ("+", "-") and args[1] == ZERO:
        return args[0]
    if tree.name == "+" and args[0] == ZERO:
        return args[1]
    if tree.name == "-" and args[0] == ZERO:
        return _op("neg", args[1])
    if tree.name not in _NOT_ZERO_AT_ZERO and all(a == ZERO for a in args):
        return ZERO
    return Op(tree.name, args)


def needed(tree: Tree, among: frozenset[int]) -> set[frozenset[int]]:
    """Return the sets of operands, of those given, whose entries make the tree other than zero.

    A product needs both sides (intersection), a sum either (union). The empty set: it may be so everywhere.

    Examples
    --------
    >>> tree = Op("+", (Op("*", (Access(0), Access(1))), Access(2)))
    >>> sorted(map(sorted, needed(tree, frozenset({0, 1, 2}))))
    [[0, 1], [0, 1, 2], [2]]
    """
    if isinstance(tree, Access):
        return {frozenset({tree.operand} & among)}
    if isinstance(tree, Const):
        return set() if tree == ZERO else {frozenset()}
    if tree.name in _NOT_ZERO_AT_ZERO:
        return {frozenset()} | {x for arg in tree.args for x in needed(arg, among)}
    sides = [needed(arg, among) for arg in tree.args]
    if len(sides) == 1:
        return sides[0]
    both = {x | y for x in sides[0] for y in sides[1]}
    return both if tree.name == "*" else sides[0] | sides[1] | both


def derivative(tree: Tree, k: int) -> Tree:
    """Return how the tree changes with operand k (which appears once).

    Examples
    --------
    >>> print(derivative(Op("*", (Access(0), Op("square", (Access(1),)))), 1))
    A * 2 * B
    """
    if isinstance(tree, Access):
        return ONE if tree.operand == k and not tree.stored else ZERO
    if isinstance(tree, Const):
        return ZERO
    parts = []
    for arg, slope in zip(tree.args, FUNCTIONS[tree.name].slopes(*tree.args), strict=True):
        inner = derivative(arg, k)
        if inner != ZERO and slope != ZERO:
            parts.append(product([slope, inner]))
    out = parts[0] if parts else ZERO
    for part in parts[1:]:
        out = _op("+", out, part)
    return out


def renumber(tree: Tree, to: dict[int, int]) -> Tree:
    """Give operands other numbers."""
    if isinstance(tree, Access):
        return Access(to[tree.operand], tree.stored)
    return tree if isinstance(tree, Const) else Op(tree.name, tuple(renumber(a, to) for a in tree.args))


def evaluate(tree: Tree, values: Sequence[Any]) -> Any:
    """Return the tree's value for tensors that broadcast: the meaning of a tree, and the oracle of what is compiled.

    Examples
    --------
    >>> import torch
    >>> evaluate(Op("-", (Access(0), Const(1.0))), [torch.tensor([1.0, 3.0])])
    tensor([0., 2.])
    """
    if isinstance(tree, Access):
        return (values[tree.operand] != 0).to(values[tree.operand].dtype) if tree.stored else values[tree.operand]
    if isinstance(tree, Const):
        like = next(v for v in values if isinstance(v, Tensor))
        return torch.full((), tree.value, dtype=like.dtype)
    return FUNCTIONS[tree.name].torch(*(evaluate(arg, values) for arg in tree.args))
