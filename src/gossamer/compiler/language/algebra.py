"""What is computed at one point of the index space: a tree of operands, numbers and functions.

Three questions are asked of a tree, and each is a short recursion here: what is left of it where some operands are
zero (:func:`without`), how it changes with one operand (:func:`derivative`), and what it is worth (:func:`evaluate`).
"""

from __future__ import annotations

import operator
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


@dataclass(frozen=True)
class Function:
    """A function that expressions may use: its value in torch and in C, and its slope.

    ``c`` has {0} and {1} for its arguments and {f} for the suffix of C's functions of its type, which is ``real``. A
    slope is a tree over the arguments, one for each. Every function here is 0 where all its arguments are.
    """

    torch: Callable[..., Any]
    c: str
    slopes: Callable[..., tuple[Tree, ...]]
    arity: int = 1
    public: bool = True


def _op(name: str, *args: Tree) -> Tree:
    return Op(name, args)


def _maximum(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    return torch.clamp(a, min=b) if isinstance(a, Tensor) else torch.clamp(b, min=a)


def _minimum(a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    return torch.clamp(a, max=b) if isinstance(a, Tensor) else torch.clamp(b, max=a)


FUNCTIONS: dict[str, Function] = {
    "+": Function(operator.add, "({0} + {1})", lambda a, b: (ONE, ONE), 2, False),
    "-": Function(operator.sub, "({0} - {1})", lambda a, b: (ONE, Const(-1.0)), 2, False),
    "*": Function(operator.mul, "({0} * {1})", lambda a, b: (b, a), 2, False),
    "max": Function(
        _maximum, "({0} > {1} || {0} != {0} ? {0} : {1})", lambda a, b: (_op("above", a, b), _op("above", b, a)), 2
    ),
    "min": Function(
        _minimum, "({0} < {1} || {0} != {0} ? {0} : {1})", lambda a, b: (_op("above", b, a), _op("above", a, b)), 2
    ),
    "neg": Function(torch.neg, "(-{0})", lambda a: (Const(-1.0),)),
    "abs": Function(torch.abs, "({0} < 0 ? -{0} : {0})", lambda a: (_op("sign", a),)),
    "sign": Function(torch.sign, "((real)(({0} > 0) - ({0} < 0)))", lambda a: (ZERO,)),
    "square": Function(torch.square, "({0} * {0})", lambda a: (_op("*", Const(2.0), a),)),
    "relu": Function(torch.relu, "({0} < 0 ? 0 : {0})", lambda a: (_op("positive", a),)),
    "sqrt": Function(torch.sqrt, "sqrt{f}({0})", lambda a: (_op("half_over", _op("sqrt", a)),)),
    "sin": Function(torch.sin, "sin{f}({0})", lambda a: (_op("cosine", a),)),
    "tanh": Function(torch.tanh, "tanh{f}({0})", lambda a: (_op("-", ONE, _op("square", _op("tanh", a))),)),
    "expm1": Function(torch.expm1, "expm1{f}({0})", lambda a: (_op("+", _op("expm1", a), ONE),)),
    "log1p": Function(torch.log1p, "log1p{f}({0})", lambda a: (_op("inverse", _op("+", ONE, a)),)),
    "exp": Function(torch.exp, "exp{f}({0})", lambda a: (_op("exp", a),), 1, False),
    # what slopes need: not functions of an expression, because they are not 0 at 0
    "positive": Function(lambda a: (a > 0).to(a.dtype), "((real)({0} > 0))", lambda a: (ZERO,), 1, False),
    "above": Function(
        lambda a, b: torch.heaviside(a - b, torch.tensor(0.5, dtype=(a - b).dtype)),
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
NOT_ZERO_AT_ZERO = {"exp", "positive", "above", "cosine", "inverse", "half_over"}


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
    if tree.name not in ("+", "-", "*"):
        return f"{tree.name}({', '.join(show(a, indices) for a in tree.args)})"
    sides = []
    for n, arg in enumerate(tree.args):
        sum_inside = isinstance(arg, Op) and arg.name in ("+", "-")
        text = show(arg, indices)
        sides.append(f"({text})" if sum_inside and (tree.name == "*" or (tree.name == "-" and n)) else text)
    return f" {tree.name} ".join(sides)


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
    if tree.name not in NOT_ZERO_AT_ZERO and all(a == ZERO for a in args):
        return ZERO
    return Op(tree.name, args)


def needed(tree: Tree, among: frozenset[int]) -> set[frozenset[int]]:
    """Return the sets of operands, of those given, whose entries make the tree other than zero.

    A product needs both sides (intersection), a sum either (union). The empty set: it may be so everywhere. The union
    of two of the sets is among them too, so that where both are present, so is the set that says so.

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
    sides = [needed(arg, among) for arg in tree.args]
    everywhere = {frozenset[int]()} if tree.name in NOT_ZERO_AT_ZERO else set()
    if len(sides) == 1:
        return sides[0] | everywhere
    both = {x | y for x in sides[0] for y in sides[1]}
    return both if tree.name == "*" else sides[0] | sides[1] | both | everywhere


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
        return tree.value  # a number to torch's rules of types: 2 leaves integers as they are, 0.5 doesn't
    return apply(tree.name, [evaluate(arg, values) for arg in tree.args])


def apply(name: str, args: Sequence[Any]) -> Any:
    """Return a function's value for tensors and numbers; that of numbers alone is a number.

    Examples
    --------
    >>> apply("max", [1.0, 2.0])
    2.0
    """
    function = FUNCTIONS[name].torch
    if any(isinstance(a, Tensor) for a in args):
        return function(*args)
    whole = name in ("+", "-", "*", "max", "min", "neg", "abs") and all(isinstance(a, int) for a in args)
    return function(*(torch.tensor(a, dtype=torch.int64 if whole else torch.float64) for a in args)).item()
