"""gs.einsum and gs.compile: any expression over tensors of any format, forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import NotationError, Statement, interpret, parse
from gossamer.compiler.language.notation import equation
from gossamer.compiler.language.steps import Step, steps
from gossamer.compiler.language.types import types
from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.calls import Prepared, plan_for, run
from gossamer.compiler.run.crossover import dense_wins, setting
from gossamer.compiler.run.infer import infer, natural
from gossamer.compiler.run.plans import Plan
from gossamer.core.interop import from_torch
from gossamer.core.tensor import (
    SparseTensor,
    WantsDenseGradient,
    build,
    gather,
    tracked,
    wants_dense_gradient,
)
from gossamer.formats import COO, Dense, Format, as_format
from gossamer.native import BuildError
from gossamer.ops import operands
from gossamer.ops.traced import traced

_LOG = logging.getLogger("gossamer")
_ORDINARY = (Tensor, torch.nn.Parameter)
_HALF = (torch.float16, torch.bfloat16)


def einsum(expression: str, *tensors: Tensor, out: Format | None = None) -> Any:
    """Compute an expression in index notation over dense and sparse tensors; the loops are compiled for their formats.

    Parameters
    ----------
    expression
        As for ``torch.einsum``, and more: see ``language.notation``.
    *tensors
        The operands, dense or in any format.
    out
        Format of the result. By default it has the entries of the one sparse operand that has the same indices and
        whose zeros make the result zero; otherwise it is sparse if every index of the result comes from sparse operands
        (in the format of the first of as many dimensions, or CSR, or CSF), and dense if not, or if it has
        fewer than two dimensions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> gs.einsum("ik,kj->ij", a, torch.eye(2))
    tensor([[0., 3.],
            [4., 0.]])
    >>> gs.einsum("ik,kj->ij", a, a)
    SparseTensor(shape=(2, 2), format=CSR(), dtype=float32, nnz=2, density=50.0 %, bytes=28 of 16)
    >>> gs.einsum("max: ij->j", a)
    tensor([4., 3.])
    """
    if out is None and torch.compiler.is_dynamo_compiling():
        return torch.einsum(expression, *tensors)  # one call in the graph, instead of all that happens here
    known = _known(expression, tensors, out)
    if known is not None:
        return known(tensors)
    format = None if out is None else as_format(out)
    tensors = tuple(from_torch(t) if _of_torch_sparse(t) else t for t in tensors)
    try:
        return _einsum(expression, tensors, format)
    except WantsDenseGradient:
        dense = [t.to_dense() if wants_dense_gradient(t) else t for t in tensors]
        return _einsum(expression, dense, format)


def _of_torch_sparse(t: Any) -> bool:
    return isinstance(t, Tensor) and not isinstance(t, SparseTensor) and t.layout != torch.strided


@lru_cache(maxsize=1)
def _without_compiler(why: str) -> None:
    """Say once that einsum computes on dense copies here."""
    _LOG.warning("gs.einsum computes on dense copies, because its kernels can't be built: %s", why)


class _Ready:
    """A plan that takes the tensors of a call as they are: the short way for a call like one before."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def nbytes(self) -> int:
        """Bytes that the plan keeps."""
        return self.plan.nbytes()

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        values, structure = self.plan([t._values if isinstance(t, SparseTensor) else t for t in tensors])
        return values if structure is None else SparseTensor(values, structure)


def _key(expression: str, tensors: Sequence[Any], out: Format | None) -> tuple[Any, ...]:
    """The key under which the plan of a call is kept; empty if autograd or a trace has a part in it."""
    key: list[Any] = [expression, out, setting()]
    grad = torch.is_grad_enabled()
    for t in tensors:
        if isinstance(t, SparseTensor):
            if grad and tracked(t):
                return ()
            structure, values = t._structure, t._values
            if type(values) not in _ORDINARY:
                return ()
            key += (id(structure), values.dtype)
        elif type(t) in _ORDINARY and t.layout is torch.strided and not (grad and t.requires_grad):
            key += (t.shape, t.stride(), t.dtype)
        else:
            return ()
    return tuple(key)


def _known(expression: str, tensors: Sequence[Tensor], out: Format | None) -> _Ready | None:
    key = _key(expression, tensors, out)
    found: _Ready | None = PLANS.get(key) if key else None
    return found


def _einsum(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Any:
    if not tensors:
        raise NotationError(f"{expression!r}: there are no operands")
    operands.check(expression, tensors)
    statement = parse(expression, [t.dim() for t in tensors])
    sizes = operands.sizes_of(expression, statement, tensors)
    half = tensors[0].dtype if tensors[0].dtype in _HALF and not _traced(tensors) else None
    results = [t.float() if half else t for t in tensors]  # stored in half, summed in single precision
    path = steps(statement, [isinstance(t, SparseTensor) for t in tensors])
    for step in path:
        format = out if step is path[-1] else None
        own = [results[n] for n in step.operands]
        copies = operands.copies(step.statement, own, sizes)
        result = _computed(expression, step, own, format, len(path) == 1)
        results.append(result if copies == 1 else result * copies)
    return results[-1].to(half) if half else results[-1]


def _computed(expression: str, step: Step, tensors: Sequence[Tensor], out: Format | None, alone: bool) -> Any:
    """Compute one step; ``alone``: it is all of the expression, so that its plan may be kept under that."""
    statement = step.statement
    kinds = types(statement, [t.dtype for t in tensors])
    sparse = any(isinstance(t, SparseTensor) for t in tensors)
    if not sparse or tensors[0].device.type != "cpu" or kinds.compute is None:
        return _on_dense(statement, tensors, out, kinds.result)
    if _traced(tensors):
        made = traced(statement, tensors, out) if tensors[0].dtype in (kinds.compute, *_HALF) else None
        return _on_dense(statement, tensors, out, kinds.result) if made is None else made
    if statement.reduce in ("max", "min") and any(tracked(t) for t in tensors):
        return _on_dense(statement, tensors, out or Dense(), kinds.result)
    sizes = operands.sizes_of(expression, statement, tensors)
    statement, prepared = operands.prepare(statement, tensors, sizes, kinds.compute)
    try:
        form, after = _form(statement, prepared, out)
        plan = plan_for(statement, [p.arg() for p in prepared], sizes, kinds.compute, form)
        if dense_wins(plan):
            return torch.einsum(equation(statement), *(p.dense() for p in prepared)).to(kinds.result)
        values, structure = run(statement, prepared, sizes, form)
    except BuildError as error:
        _without_compiler(str(error))
        return _on_dense(step.statement, tensors, out, kinds.result)
    values = values.to(kinds.result)
    as_they_are = all(
        (p.values.dtype == t.dtype == values.dtype) if p.structure is not None else p.values is t
        for p, t in zip(prepared, tensors, strict=True)
    )
    if alone and as_they_are and after is None:
        key = _key(expression, tensors, out)
        if key:
            PLANS.keep(key, _Ready(plan), tuple(p.structure for p in prepared if p.structure is not None))
    result = values if structure is None else build(values, structure)
    return result if after is None else _converted(result, after)


def _on_dense(statement: Statement, tensors: Sequence[Tensor], out: Format | None, dtype: torch.dtype) -> Any:
    """Compute without a kernel: the same result in the same format, from dense copies."""
    given = [_dense(t) for t in tensors]
    if statement.multiplies:
        dense = torch.einsum(equation(statement), *(t.to(dtype) for t in given))
    else:
        dense = interpret(statement, given).to(dtype)
    if out is not None:
        return _converted(dense, out)
    structures = [t.structure if isinstance(t, SparseTensor) and t.dim() else None for t in tensors]
    if not any(structures):
        return dense
    form = infer(statement, structures)
    if isinstance(form, int):
        structure = structures[form]
        assert structure is not None
        return build(gather(dense, structure), structure)
    return dense if _traced(tensors) else _converted(dense, form)  # a trace can't count the entries of a new pattern


def _traced(tensors: Sequence[Tensor]) -> bool:
    """Is this a trace, whose tensors have no memory to point to?"""
    values = [t._values if isinstance(t, SparseTensor) else t for t in tensors]
    return torch.compiler.is_compiling() or any(type(v) not in _ORDINARY for v in values)


def plan_of(expression: str, tensors: Sequence[Tensor], out: Format | None = None) -> Plan | None:
    """Return the plan by which a call would be computed, of its first step if there are several; None if torch does."""
    return next(iter(plans_of(expression, tensors, out)), None)


def plans_of(expression: str, tensors: Sequence[Tensor], out: Format | None = None) -> list[Plan]:
    """Return the plans of a call's steps, as far as they are over its own operands; none if torch computes it."""
    statement = parse(expression, [t.dim() for t in tensors])
    path, found = steps(statement, [isinstance(t, SparseTensor) for t in tensors]), []
    for step in path:
        if any(n >= len(tensors) for n in step.operands):
            continue
        own = [tensors[n].detach() for n in step.operands]
        kinds = types(step.statement, [t.dtype for t in own])
        if not any(isinstance(t, SparseTensor) for t in own) or kinds.compute is None:
            continue
        sizes = operands.sizes_of(expression, step.statement, own)
        with torch.no_grad():
            inner, prepared = operands.prepare(step.statement, own, sizes, kinds.compute)
            form, _ = _form(inner, prepared, None if out is None or step is not path[-1] else as_format(out))
            found.append(plan_for(inner, [p.arg() for p in prepared], sizes, kinds.compute, form))
    return found


def _dense(t: Tensor) -> Tensor:
    return t.to_dense() if isinstance(t, SparseTensor) else t


def _converted(result: Tensor, out: Format | None) -> Any:
    from gossamer.ops.dense import from_dense

    if out is None or isinstance(out, Dense):
        return _dense(result)
    return result.to_format(out) if isinstance(result, SparseTensor) else from_dense(result, out)


def _form(
    statement: Statement, prepared: Sequence[Prepared], out: Format | None
) -> tuple[str | int | Format, Format | None]:
    """Return what the kernel makes, and the format into which that is converted afterwards, if it is."""
    inferred = infer(statement, [p.structure for p in prepared])
    target: int | Format = inferred if out is None else out
    if out is not None and isinstance(inferred, int) and prepared[inferred].structure.format == out:  # type: ignore[union-attr]
        target = inferred
    after: Format | None = None
    if isinstance(target, Format) and not isinstance(target, Dense) and not natural(target, len(statement.output)):
        after, target = target, inferred if isinstance(inferred, int) else COO() if statement.output else Dense()
    return ("dense" if isinstance(target, Dense) else target), after
