"""The functions that expressions may use: their values in torch and in C, and their slopes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.language.tree import ONE, ZERO, Const, Op, Tree


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


def _divided(a: Any, b: Any) -> Any:
    """A quotient; nothing divided by nothing is nothing."""
    zero = (a == 0) & (b == 0) if isinstance(a, Tensor) or isinstance(b, Tensor) else a == b == 0
    if isinstance(zero, Tensor):
        return a / (b + zero)
    return 0.0 if zero else a / b


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """1 where it holds and 0 elsewhere, in the type of what is compared."""
    return lambda a, b: compare(a, b).to((a if isinstance(a, Tensor) else b).dtype)


def _where(condition: Any, a: Any, b: Any) -> Any:
    condition = condition if isinstance(condition, Tensor) else torch.tensor(condition)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = condition.new_tensor(a)
    return torch.where(condition != 0, a, b)


def _slopes_of_quotient(a: Tree, b: Tree) -> tuple[Tree, ...]:
    return _op("/", ONE, b), _op("neg", _op("/", a, _op("square", b)))


def _no_slopes(*args: Tree) -> tuple[Tree, ...]:
    return (ZERO,) * len(args)


FUNCTIONS: dict[str, Function] = {
    "+": Function(operator.add, "({0} + {1})", lambda a, b: (ONE, ONE), 2, False),
    "-": Function(operator.sub, "({0} - {1})", lambda a, b: (ONE, Const(-1.0)), 2, False),
    "*": Function(operator.mul, "({0} * {1})", lambda a, b: (b, a), 2, False),
    "/": Function(
        _divided, "({0} == 0 && {1} == 0 ? {0} : {0} / {1})", _slopes_of_quotient, 2, False
    ),
    "<": Function(_compared(operator.lt), "((real)({0} < {1}))", _no_slopes, 2, False),
    ">": Function(_compared(operator.gt), "((real)({0} > {1}))", _no_slopes, 2, False),
    "<=": Function(_compared(operator.le), "((real)({0} <= {1}))", _no_slopes, 2, False),
    ">=": Function(_compared(operator.ge), "((real)({0} >= {1}))", _no_slopes, 2, False),
    "==": Function(_compared(operator.eq), "((real)({0} == {1}))", _no_slopes, 2, False),
    "!=": Function(_compared(operator.ne), "((real)({0} != {1}))", _no_slopes, 2, False),
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
    "exp": Function(torch.exp, "exp{f}({0})", lambda a: (_op("exp", a),)),
    "where": Function(
        _where, "({0} != 0 ? {1} : {2})", lambda c, a, b: (ZERO, _op("!=", c, ZERO), _op("==", c, ZERO)), 3
    ),
    # a sum inside an expression: ``steps`` computes it first
    "sum": Function(operator.pos, "{0}", lambda a: (ONE,)),
    # a sum that is there only where both sides are: the product of the semirings of max and min
    "plus": Function(operator.add, "({0} + {1})", lambda a, b: (ONE, ONE), 2, False),
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
JOINS = ("*", "plus")  # nothing where one of the sides is nothing
NOT_ZERO_AT_ZERO = {"<=", ">=", "==", "exp", "positive", "above", "cosine", "inverse", "half_over"}


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
