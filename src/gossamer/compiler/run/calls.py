"""Statements on prepared operands: planned once, run, and differentiated by the same compiler."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import derivative, operands, product, renumber
from gossamer.compiler.language.tree import ZERO as NOTHING
from gossamer.compiler.language.tree import Access, Tree
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.plans import Plan
from gossamer.formats import Format, Structure
from gossamer.formats.values import scatter


class Prepared:
    """An operand that is ready for the compiler: its values, and a structure if it is sparse."""

    def __init__(self, values: Tensor, structure: Structure | None, vars: tuple[str, ...]) -> None:
        self.values, self.structure, self.vars = values, structure, vars

    def dense(self) -> Tensor:
        """Return the operand as an ordinary tensor."""
        return self.values if self.structure is None else scatter(self.values, self.structure)

    def arg(self) -> Arg:
        """Describe it without its values."""
        if self.structure is not None:
            return Arg(self.vars, self.structure, tuple(self.structure.shape))
        return Arg(self.vars, None, tuple(self.values.shape), self.values.stride())


def run(
    statement: Statement, prepared: list[Prepared], sizes: dict[str, int], out: str | int | Format
) -> tuple[Tensor, Structure | None]:
    """Compute a statement, differentiably: the values of the result, and its structure if it is sparse."""
    call = Call(statement, prepared, sizes, out)
    if torch.is_grad_enabled() and any(p.values.requires_grad for p in prepared):
        values = _Einsum.apply(call, *(p.values for p in prepared))
        return values, call.structure
    return call([p.values for p in prepared])


class Call:
    """A statement on structures, waiting for values."""

    def __init__(
        self, statement: Statement, prepared: Sequence[Prepared], sizes: dict[str, int], out: str | int | Format
    ) -> None:
        self.statement, self.sizes, self.out = statement, sizes, out
        self.structures = [p.structure for p in prepared]
        self.args = [p.arg() for p in prepared]
        self.structure: Structure | None = None

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        plan = plan_for(self.statement, self.args, self.sizes, values[0].dtype, self.out)
        result, self.structure = plan([v.detach() for v in values])
        return result, self.structure


def plan_for(
    statement: Statement, args: Sequence[Arg], sizes: dict[str, int], dtype: torch.dtype, out: str | int | Format
) -> Plan:
    """Return the plan for a statement on these operands; it is kept as long as their structures live."""
    operands_key = tuple((id(a.structure) if a.structure is not None else (a.shape, a.stride)) for a in args)
    key = ("plan", statement, operands_key, dtype, out, tuple(sorted(sizes.items())))
    owners = tuple(a.structure for a in args if a.structure is not None)
    found: Plan = PLANS.cached(key, lambda: Plan(statement, args, sizes, dtype, out), owners)
    return found


class _Einsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *values: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*values)
        result, ctx.structure = call(values)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, values = ctx.call, ctx.saved_tensors
        grads = [
            gradient(call, values, grad.contiguous(), ctx.structure, k) if ctx.needs_input_grad[k + 1] else None
            for k in range(len(values))
        ]
        return (None, *grads)


def gradient(call: Call, values: Sequence[Tensor], grad: Tensor, structure: Structure | None, k: int) -> Tensor:
    """Gradient of one operand: the derivative times what arrives, summed over what the operand does not have."""
    s, slope = call.statement, derivative(call.statement.tree, k)
    if slope == NOTHING:
        return torch.zeros_like(values[k])
    keep = [j for j in operands(slope) if j != k]
    chosen = [k, *keep] if call.structures[k] is not None or k in operands(slope) else keep
    number = {j: n + 1 for n, j in enumerate(chosen)}
    factors: list[Tree] = [Access(0), renumber(slope, number)]
    if call.structures[k] is not None:
        factors.append(Access(number[k], stored=True))
    inputs = (s.output, *(s.inputs[j] for j in chosen))
    inner = Statement(inputs, s.inputs[k], product(factors))
    prepared = [Prepared(grad, structure, s.output)]
    prepared += [Prepared(values[j], call.structures[j], s.inputs[j]) for j in chosen]
    out: str | int = number[k] if call.structures[k] is not None else "dense"
    found, _ = run(inner, prepared, call.sizes, out)
    if s.reduce == "mean":
        return found / math.prod(call.sizes[v] for v in s.summed)
    # an index that neither the slope nor the operand has was summed all the same: where an operand broadcasts
    lost = math.prod(call.sizes[v] for v in s.summed if not any(v in group for group in (*inputs, s.inputs[k])))
    return found if lost == 1 else found * lost
