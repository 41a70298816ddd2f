"""The form of the result of an einsum, and the result without a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import Statement, interpret
from gossamer.compiler.language.statement import equation
from gossamer.compiler.language.tree import Access, Const, Op, Tree
from gossamer.compiler.run.calls import Prepared
from gossamer.compiler.run.infer import infer, natural
from gossamer.core.fallback import formats_of, refuse_fallback, tell_fallback
from gossamer.core.join import build, gather, tracked
from gossamer.core.tensor import SparseTensor
from gossamer.formats import COO, Dense, Format
from gossamer.ops import operands
from gossamer.ops.ready import ORDINARY, transformed

_SMALL = (torch.int8, torch.uint8, torch.int16, torch.int32)


def on_dense(statement: Statement, tensors: Sequence[Tensor], out: Format | int | None, dtype: torch.dtype) -> Any:
    """Compute without a kernel: the same result in the same format, from dense copies."""
    given = [_dense(t) for t in tensors]
    if statement.multiplies:
        # torch.einsum sums one operand of small integers to int64, and then finds another type in the other
        compute = torch.int64 if dtype in _SMALL else dtype
        dense = _multiplied(equation(statement), [t.to(compute) for t in given]).to(dtype)
    else:
        dense = interpret(statement, given).to(dtype)
    if transformed(tensors):
        if isinstance(out, Format) and not isinstance(out, Dense):
            raise NotImplementedError(f"a result inside a transform of torch.func is dense: it can't be in {out}")
        return dense
    if isinstance(out, Format):
        return converted(dense, out) if is_traced(tensors) else _stored(dense, statement, tensors, out)
    if not any(isinstance(t, SparseTensor) and t.dim() for t in tensors):
        return dense
    form = operands.inferred(statement, tensors) if out is None else out
    if isinstance(form, int):
        like = tensors[form]
        assert isinstance(like, SparseTensor)
        return build(gather(dense, like.structure), like.structure)
    if is_traced(tensors):
        return dense  # a trace can't count the entries of a new pattern
    return _stored(dense, statement, tensors, form)


def _stored(dense: Tensor, statement: Statement, tensors: Sequence[Tensor], out: Format) -> Any:
    """Return a dense result in a format, with the entries that a kernel stores: some are 0, and have gradients."""
    from gossamer.ops.dense import from_dense

    if isinstance(out, Dense) or not dense.dim() or not any(tracked(t) for t in tensors):
        return converted(dense, out)
    ones = [_ones(t) for t in tensors]
    place = interpret(replace(statement, tree=_presence(statement.tree), reduce="sum"), ones)
    structure = from_dense(((place != 0) | (dense.detach() != 0)).float(), out).structure  # type: ignore[attr-defined]
    return build(gather(dense, structure), structure)


def _ones(t: Tensor) -> Tensor:
    """Return 1 where a tensor stores something, else 0."""
    if isinstance(t, SparseTensor):
        return t.detach().mask().float()  # type: ignore[attr-defined]
    return torch.ones_like(t, dtype=torch.float32)


def _presence(tree: Tree) -> Tree:
    """Return a tree that is above 0 where one of operands that are 0 or 1 gives an entry."""
    if not isinstance(tree, Op):
        return tree if isinstance(tree, Access) else Const(1.0)
    args = tuple(_presence(arg) for arg in (tree.args[:1] if tree.name == "/" else tree.args))
    if tree.name == "*":
        return Op("*", args)
    return reduce(lambda a, b: Op("+", (a, b)), args)


def _multiplied(equation: str, tensors: Sequence[Tensor]) -> Tensor:
    """A product of dense tensors. ``torch.einsum`` goes through batches, which cost a product of two matrices time."""
    if equation == "ab,bc->ac" and tensors[0].shape[1] == tensors[1].shape[0]:
        return tensors[0] @ tensors[1]
    return torch.einsum(equation, *tensors)


def is_traced(tensors: Sequence[Tensor]) -> bool:
    """Is this a trace, or a transform, whose tensors have no memory to point to?"""
    values = [t._values if isinstance(t, SparseTensor) else t for t in tensors]
    return torch.compiler.is_compiling() or any(type(v) not in ORDINARY for v in values) or transformed(tensors)


def tell_dense(tensors: Sequence[Tensor], reason: str) -> None:
    """Warn, or raise, that an einsum is computed on dense copies; a trace only raises. Masked and meta have none."""
    if any(isinstance(t, SparseTensor) and not t.structure.plain and t.device.type != "meta" for t in tensors):
        told = refuse_fallback if torch.compiler.is_compiling() else tell_fallback
        told("gs.einsum", formats_of(tensors), reason)


def _dense(t: Tensor) -> Tensor:
    return t.to_dense() if isinstance(t, SparseTensor) else t


def converted(result: Tensor, out: Format | None) -> Any:
    """Return a result in a format; as an ordinary tensor without one."""
    from gossamer.ops.dense import from_dense

    if out is None or isinstance(out, Dense):
        return _dense(result)
    return result.to_format(out) if isinstance(result, SparseTensor) else from_dense(result, out)


def form_for(
    statement: Statement, prepared: Sequence[Prepared], out: Format | int | None
) -> tuple[str | int | Format, Format | None]:
    """Return what the kernel makes, and the format into which that is converted afterwards, if it is."""
    inferred = infer(statement, [p.structure for p in prepared]) if not isinstance(out, int) else out
    target: int | Format = inferred if out is None else out
    if isinstance(out, Format) and isinstance(inferred, int) and prepared[inferred].structure.format == out:  # type: ignore[union-attr]
        target = inferred
    after: Format | None = None
    if isinstance(target, Format) and not isinstance(target, Dense) and not natural(target, len(statement.output)):
        after, target = target, inferred if isinstance(inferred, int) else COO() if statement.output else Dense()
    return ("dense" if isinstance(target, Dense) else target), after
