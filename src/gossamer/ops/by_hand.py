"""gs.einsum with loops that are given by hand: one kernel, with just these loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import parse
from gossamer.compiler.language.types import types
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.calls import AnyPlan, Prepared, plan_for, run
from gossamer.core.join import build
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.ops import operands
from gossamer.ops.forms import converted, form_for, is_traced
from gossamer.ops.planned import path_of
from gossamer.ops.ready import Ready, Recipe, key_of
from gossamer.ops.windows import plainly

_HALF = (torch.float16, torch.bfloat16)


def by_hand(expression: str, tensors: Sequence[Tensor], out: Format | None, loops: Loops) -> Any:
    """Compute an expression with these loops; what they can't do is refused with the reason.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(2), gs.CSR())
    >>> by_hand("ij,j->i", [a, torch.ones(2)], None, gs.Loops("ij"))
    tensor([1., 1.])
    """
    expression, tensors = plainly(expression, tensors)
    key = key_of(expression, tensors, out)
    key = (*key, loops) if key else ()
    if key and (known := PLANS.get(key)) is not None:
        return known(tensors)
    half = tensors[0].dtype if tensors and tensors[0].dtype in _HALF else None
    call = _Call(expression, [t.float() if half else t for t in tensors], out, loops)
    plan = call.plan()
    values, structure = run(call.statement, call.prepared, call.sizes, call.form, loops)
    result = values.to(call.result) if structure is None else build(values.to(call.result), structure)
    result = result if call.after is None else converted(result, call.after)
    if key and call.as_they_are and not half and call.after is None:
        recipe = Recipe(call.statement, tuple(p.vars for p in call.prepared), call.sizes, values.dtype, call.form, {})
        PLANS.keep(key, Ready(plan, recipe), tuple(t._structure for t in tensors if isinstance(t, SparseTensor)))
    return result.to(half) if half else result


def plan_by_hand(expression: str, tensors: Sequence[Tensor], out: Format | None, loops: Loops) -> AnyPlan:
    """Return the plan of an expression with these loops.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(2), gs.CSR())
    >>> plan_by_hand("ik,kj->ij", [a, a], None, gs.Loops(workspace="hash")).kernel.program.workspace
    'hash'
    """
    expression, tensors = plainly(expression, tensors)
    given = [t.detach().float() if t.dtype in _HALF else t.detach() for t in tensors]
    return _Call(expression, given, out, loops).plan()


class _Call:
    """A statement on operands, in one kernel."""

    def __init__(self, expression: str, tensors: Sequence[Tensor], out: Format | None, loops: Loops) -> None:
        operands.check(expression, tensors)
        statement = parse(expression, [t.dim() for t in tensors])
        self.loops = loops
        self._refuse(expression, tensors, len(path_of(statement, tensors)))
        kinds = types(statement, [t.dtype for t in tensors])
        if kinds.compute is None:
            raise TypeError(f"{loops}: there are no kernels for {str(tensors[0].dtype)[6:]} in {expression!r}")
        self.sizes, self.result = operands.sizes_of(expression, statement, tensors), kinds.result
        if operands.copies(statement, tensors, self.sizes) != 1:
            raise NotImplementedError(f"{loops}: {expression!r} sums an index along which all operands broadcast")
        dtype = operands.stored_type(tensors, kinds.compute)
        self.statement, self.prepared = operands.prepare(statement, tensors, self.sizes, dtype)
        self.form, self.after = form_for(self.statement, self.prepared, out)
        self.as_they_are = all(_as_it_is(p, t, self.result) for p, t in zip(self.prepared, tensors, strict=True))

    def _refuse(self, expression: str, tensors: Sequence[Tensor], steps: int) -> None:
        if not any(isinstance(t, SparseTensor) for t in tensors):
            raise ValueError(f"{self.loops}: no operand of {expression!r} is sparse, so torch computes it")
        if is_traced(tensors):
            raise NotImplementedError(f"{self.loops}: loops are given by hand only outside traces and transforms")
        if steps > 1:
            raise NotImplementedError(
                f"{self.loops}: {expression!r} is computed in {steps} steps: write each as an einsum with its own loops"
            )

    def plan(self) -> AnyPlan:
        """Return its plan."""
        args, first = [p.arg() for p in self.prepared], self.prepared[0].values
        return plan_for(self.statement, args, self.sizes, first.dtype, self.form, first.device, self.loops)


def _as_it_is(prepared: Prepared, tensor: Tensor, result: torch.dtype) -> bool:
    """Does a kernel read the tensor itself?"""
    if prepared.structure is None:
        return prepared.values is tensor
    return prepared.values.dtype == tensor.dtype == result
