"""Types of results: those that torch would give.

A value at one point has the type that torch's operators give it. A sum of integers or bools is int64, as that of
``torch.sum``; a contraction, of an index that two factors of a product share, keeps the type, as that of
``torch.einsum``. The mean of integers, and a contraction of bools, are refused, as by torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch

from gossamer.compiler.language.algebra import evaluate, factors, operands
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Op, Tree

_SMALL = (torch.int8, torch.int16, torch.uint8, torch.bool)


class Types(NamedTuple):
    """The type that kernels compute in (None: there is none), and that of the result."""

    compute: torch.dtype | None
    result: torch.dtype


def types(statement: Statement, given: Sequence[torch.dtype]) -> Types:
    """Return the types in which a statement is computed; TypeError for those that torch refuses too.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.language.notation import parse
    >>> types(parse("ij->i", (2,)), [torch.int32]).result, types(parse("ij,j->i", (2, 1)), [torch.int32] * 2).result
    (torch.int64, torch.int32)
    >>> types(parse("0.5 * ij->ij", (2,)), [torch.int32]).result
    torch.float32
    """
    return _types(statement, tuple(given))


@lru_cache(maxsize=1024)
def _types(statement: Statement, given: tuple[torch.dtype, ...]) -> Types:
    try:
        point = evaluate(statement.tree, [torch.empty(0, dtype=dtype) for dtype in given])
    except RuntimeError as error:
        raise TypeError(f"{statement}: torch has no such operation for {_said(given)}: {error}") from None
    dtype = point.dtype if isinstance(point, torch.Tensor) else given[0]
    if statement.reduce == "mean" and not (dtype.is_floating_point or dtype.is_complex):
        raise TypeError(f"{statement}: a mean of {_said(given)} is refused, as by torch: convert with .float()")
    if statement.reduce in ("max", "min") and dtype.is_complex:
        raise TypeError(f"{statement}: torch has no such operation for {_said(given)}, which has no order")
    result = dtype
    if statement.reduce == "sum" and statement.summed and not (dtype.is_floating_point or dtype.is_complex):
        lone = [v for v in statement.summed if sum(v in _indices(f, statement) for f in factors(statement.tree)) < 2]
        if lone:
            result = torch.int64
        elif dtype == torch.bool:
            raise TypeError(f"{statement}: bools can't be contracted, as in torch.einsum: convert with .int()")
    if statement.reduce in ("max", "min") and dtype in _SMALL and isinstance(statement.tree, Op):
        return Types(None, result)  # a maximum of what would wrap around is not that of more bits
    return Types(_computed(statement.tree, given, dtype, result), result)


def _computed(tree: Tree, given: Sequence[torch.dtype], dtype: torch.dtype, result: torch.dtype) -> torch.dtype | None:
    if dtype.is_floating_point and _wraps(tree, given):
        return None  # floats would not wrap around as the integers do
    if dtype in (torch.float32, torch.float64, torch.int64) or (dtype == torch.int32 and result == dtype):
        return dtype
    if dtype in (torch.float16, torch.bfloat16):
        return torch.float32
    if result == torch.int64 and (dtype == torch.int32 or _ring(tree)):
        return torch.int64
    # sums and products of more bits have the right low ones; a maximum of what would wrap around has not
    return torch.int32 if dtype in _SMALL and set(given) <= set(_SMALL) and _ring(tree) else None


def _ring(tree: Tree) -> bool:
    """Is it made of sums and products alone?"""
    return not isinstance(tree, Op) or (tree.name in ("+", "-", "*", "neg") and all(_ring(a) for a in tree.args))


def _wraps(tree: Tree, given: Sequence[torch.dtype]) -> bool:
    """Does it compute with integers somewhere?"""
    if not isinstance(tree, Op) or all(dtype.is_floating_point for dtype in given):
        return False
    here = evaluate(tree, [torch.empty(0, dtype=dtype) for dtype in given])
    if isinstance(here, torch.Tensor) and not here.is_floating_point():
        return True
    return any(_wraps(arg, given) for arg in tree.args)


def _indices(tree: Tree, statement: Statement) -> set[str]:
    return {v for k in operands(tree) for v in statement.inputs[k]}


def _said(given: Sequence[torch.dtype]) -> str:
    return ", ".join(dict.fromkeys(str(dtype)[6:] for dtype in given))
