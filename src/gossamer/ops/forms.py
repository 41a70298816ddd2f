"""What an einsum makes: the form of its result, and its result without a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import Statement, interpret
from gossamer.compiler.language.statement import equation
from gossamer.compiler.run.calls import Prepared
from gossamer.compiler.run.infer import infer, natural
from gossamer.core.join import build, gather
from gossamer.core.tensor import SparseTensor
from gossamer.formats import COO, Dense, Format
from gossamer.ops import operands
from gossamer.ops.ready import ORDINARY


def on_dense(statement: Statement, tensors: Sequence[Tensor], out: Format | int | None, dtype: torch.dtype) -> Any:
    """Compute without a kernel: the same result in the same format, from dense copies."""
    given = [_dense(t) for t in tensors]
    if statement.multiplies:
        dense = _multiplied(equation(statement), [t.to(dtype) for t in given]).to(dtype)  # einsum sums int8 to int64
    else:
        dense = interpret(statement, given).to(dtype)
    if isinstance(out, Format):
        return converted(dense, out)
    if not any(isinstance(t, SparseTensor) and t.dim() for t in tensors):
        return dense
    form = operands.inferred(statement, tensors) if out is None else out
    if isinstance(form, int):
        like = tensors[form]
        assert isinstance(like, SparseTensor)
        return build(gather(dense, like.structure), like.structure)
    return dense if is_traced(tensors) else converted(dense, form)  # a trace can't count the entries of a new pattern


def _multiplied(equation: str, tensors: Sequence[Tensor]) -> Tensor:
    """A product of dense tensors. ``torch.einsum`` goes through batches, which cost a product of two matrices time."""
    if equation == "ab,bc->ac" and tensors[0].shape[1] == tensors[1].shape[0]:
        return tensors[0] @ tensors[1]
    return torch.einsum(equation, *tensors)


def is_traced(tensors: Sequence[Tensor]) -> bool:
    """Is this a trace, whose tensors have no memory to point to?"""
    values = [t._values if isinstance(t, SparseTensor) else t for t in tensors]
    return torch.compiler.is_compiling() or any(type(v) not in ORDINARY for v in values)


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
