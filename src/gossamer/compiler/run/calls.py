"""Statements on prepared operands: planned once, run, and differentiated by the same compiler."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.gpu import elementwise
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.elementwise import ElementwisePlan
from gossamer.compiler.gpu.joined import JoinedPlan
from gossamer.compiler.gpu.plan import GpuPlan
from gossamer.compiler.gpu.takes import refusal
from gossamer.compiler.language.algebra import derivative, operands, product, renumber
from gossamer.compiler.language.tree import ZERO as NOTHING
from gossamer.compiler.language.tree import Access, Tree
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.flat import flattened
from gossamer.compiler.run.plans import Plan
from gossamer.formats import Format, Structure
from gossamer.formats.values import scatter

AnyPlan = Plan | GpuPlan | JoinedPlan | ElementwisePlan


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
    statement: Statement,
    prepared: list[Prepared],
    sizes: dict[str, int],
    out: str | int | Format,
    loops: Loops | None = None,
) -> tuple[Tensor, Structure | None]:
    """Compute a statement, differentiably: the values of the result, and its structure if it is sparse.

    ``loops`` are those of the statement itself; the loops of its gradients are chosen.
    """
    call = Call(statement, prepared, sizes, out, loops)
    if torch.is_grad_enabled() and any(p.values.requires_grad for p in prepared):
        values = _Einsum.apply(call, *(p.values for p in prepared))
        return values, call.structure
    return call([p.values for p in prepared])


class Call:
    """A statement on structures, waiting for values."""

    def __init__(
        self,
        statement: Statement,
        prepared: Sequence[Prepared],
        sizes: dict[str, int],
        out: str | int | Format,
        loops: Loops | None = None,
    ) -> None:
        self.statement, self.sizes, self.out, self.loops = statement, sizes, out, loops
        self.structures = [p.structure for p in prepared]
        self.args = [p.arg() for p in prepared]
        self.structure: Structure | None = None
        self.known: Known | None = None

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        plan = plan_for(self.statement, self.args, self.sizes, values[0].dtype, self.out, values[0].device, self.loops)
        result, self.structure = plan([v.detach() for v in values])
        return result, self.structure


class KnownGradient(NamedTuple):
    """A gradient that was computed before: its plan, its operands after what arrives, and a factor."""

    plan: Callable[[], AnyPlan | None]  # weak: it is in the cache, which may drop it
    chosen: tuple[int, ...]
    factor: float


class Known:
    """What is the same in all calls on the same patterns: the plan, and those of gradients."""

    def __init__(self, plan: AnyPlan, statement: Statement, sizes: dict[str, int]) -> None:
        self.plan, self.statement, self.sizes = plan, statement, sizes
        self.gradients: dict[int, KnownGradient] = {}


class KnownCall:
    """A call whose plan is known: as :class:`Call` otherwise."""

    def __init__(self, known: Known, structures: Sequence[Structure | None]) -> None:
        self.known, self.structures = known, structures
        self.statement, self.sizes = known.statement, known.sizes
        self.structure: Structure | None = None

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        result, self.structure = self.known.plan(values)
        return result, self.structure


def followed(known: Known, values: Sequence[Tensor], structures: Sequence[Structure | None]) -> Any:
    """Run a known plan, differentiably; return values and structure of the result."""
    call = KnownCall(known, structures)
    return _apply(call, *values), call.structure


def plan_for(
    statement: Statement,
    args: Sequence[Arg],
    sizes: dict[str, int],
    dtype: torch.dtype,
    out: str | int | Format,
    device: torch.device,
    loops: Loops | None = None,
) -> AnyPlan:
    """Return the plan for a statement on these operands; it is kept as long as their structures live."""
    operands_key = tuple((id(a.structure) if a.structure is not None else (a.shape, a.stride)) for a in args)
    key = ("plan", statement, operands_key, dtype, out, tuple(sorted(sizes.items())), device, loops)
    owners = tuple(a.structure for a in args if a.structure is not None)
    found: AnyPlan = PLANS.cached(key, lambda: new_plan(statement, args, sizes, dtype, out, device, loops), owners)
    return found


def new_plan(
    statement: Statement,
    args: Sequence[Arg],
    sizes: dict[str, int],
    dtype: torch.dtype,
    out: str | int | Format,
    device: torch.device,
    loops: Loops | None = None,
) -> AnyPlan:
    """Plan a statement for a device."""
    if not gpu.on_gpu(device):
        return Plan(statement, args, sizes, dtype, out, loops)
    if loops is not None:
        raise NotImplementedError(f"{loops}: loops are given by hand for CPUs alone; those of a GPU are always chosen")
    if out == "dense" and elementwise.takes(statement, args, sizes, dtype):
        return ElementwisePlan(statement, args, sizes, dtype)
    if isinstance(out, Format) and flattened(statement, args, sizes, out) is None:
        return JoinedPlan(statement, args, sizes, dtype, out)
    return GpuPlan(statement, args, sizes, dtype, out)


def refused(call: Call, values: Sequence[Tensor]) -> str | None:
    """Say why the GPU does not compute a call, or one of the gradients that will be asked for; None if it does."""
    first = values[0]
    if not gpu.on_gpu(first.device):
        return None
    wanted = tuple(k for k, v in enumerate(values) if torch.is_grad_enabled() and v.requires_grad)
    owners = tuple(a.structure for a in call.args if a.structure is not None)
    shapes = tuple(id(a.structure) if a.structure is not None else a.shape for a in call.args)
    key = ("refused", call.statement, shapes, first.dtype, call.out, wanted)
    found: tuple[str | None] = PLANS.cached(key, lambda: (_refused(call, wanted, first.dtype),), owners)
    return found[0]


def _refused(call: Call, wanted: Sequence[int], dtype: torch.dtype) -> str | None:
    why = refusal(call.statement, call.args, call.sizes, dtype, call.out)
    structure = call.structures[call.out] if isinstance(call.out, int) else None
    for k in wanted:
        step = backward_step(call.statement, tuple(s is not None for s in call.structures), k)
        if why is not None or step is None:
            continue
        own = [structure, *(call.structures[j] for j in step.chosen)]
        args = [
            Arg(names, s, tuple(call.sizes[v] for v in names))
            for names, s in zip(step.statement.inputs, own, strict=True)
        ]
        why = refusal(step.statement, args, call.sizes, dtype, step.out)
    return why


class _Einsum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call | KnownCall, *values: Tensor) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(*values)
        result, ctx.structure = call(values)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        call, values, grad = ctx.call, ctx.saved_tensors, grad.resolve_neg().contiguous()
        grads = [
            gradient(call, values, grad, ctx.structure, k) if ctx.needs_input_grad[k + 1] else None
            for k in range(len(values))
        ]
        return (None, *grads)


#: As ``_Einsum.apply``, without its question for transforms of ``torch.func``, which known calls have no part in.
_apply: Callable[..., Tensor] = super(torch.autograd.Function, _Einsum).apply


class Backward(NamedTuple):
    """The statement of a gradient: what arrives is its first operand, then those of the call that ``chosen`` names."""

    statement: Statement
    chosen: tuple[int, ...]
    out: str | int


@lru_cache(maxsize=1024)
def backward_step(s: Statement, sparse: tuple[bool, ...], k: int) -> Backward | None:
    """Return the derivative times what arrives, summed over what operand k does not have; None if it is 0."""
    slope = derivative(s.tree, k)
    if slope == NOTHING:
        return None
    keep = [j for j in operands(slope) if j != k]
    chosen = [k, *keep] if sparse[k] or k in operands(slope) else keep
    number = {j: n + 1 for n, j in enumerate(chosen)}
    factors: list[Tree] = [Access(0), renumber(slope, number)]
    if sparse[k]:
        factors.append(Access(number[k], stored=True))
    inputs = (s.output, *(s.inputs[j] for j in chosen))
    return Backward(
        Statement(inputs, s.inputs[k], product(factors)), tuple(chosen), number[k] if sparse[k] else "dense"
    )


def gradient(
    call: Call | KnownCall, values: Sequence[Tensor], grad: Tensor, structure: Structure | None, k: int
) -> Tensor:
    """Gradient of one operand."""
    # the structure of a result with its own pattern may be another object in each call
    known = call.known if structure is None or any(structure is x for x in call.structures) else None
    if known is not None and (found := _known_gradient(known, values, grad, k)) is not None:
        return found
    s, step = call.statement, backward_step(call.statement, tuple(x is not None for x in call.structures), k)
    if step is None:
        return torch.zeros_like(values[k])
    prepared = [Prepared(grad, structure, s.output)]
    prepared += [Prepared(values[j], call.structures[j], s.inputs[j]) for j in step.chosen]
    made, _ = run(step.statement, prepared, call.sizes, step.out)
    factor = _factor(s, step, call.sizes, k)
    if known is not None:
        args = [p.arg() for p in prepared]
        plan = plan_for(step.statement, args, call.sizes, grad.dtype, step.out, grad.device)
        known.gradients[k] = KnownGradient(weakref.ref(plan), step.chosen, factor)
    return made if factor == 1 else made * factor


def _factor(s: Statement, step: Backward, sizes: dict[str, int], k: int) -> float:
    """How often a term was counted: an index that neither slope nor operand has is summed, where others broadcast."""
    groups = (*step.statement.inputs, s.inputs[k])
    lost = math.prod(sizes[v] for v in s.summed if not any(v in group for group in groups))
    return lost / math.prod(sizes[v] for v in s.summed) if s.reduce == "mean" else lost


def _known_gradient(known: Known, values: Sequence[Tensor], grad: Tensor, k: int) -> Tensor | None:
    """Run the plan of a gradient that an earlier call on the same patterns made; None if there is none."""
    found = known.gradients.get(k)
    if found is None or torch.is_grad_enabled():
        return None
    plan = found.plan()
    if plan is None:
        return None
    made, _ = plan([grad, *(values[j] for j in found.chosen)])
    return made if found.factor == 1 else made * found.factor
