"""gs.einsum and gs.compile: any expression over tensors of any format, forward and backward."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from gossamer.compiler import NotationError, Statement, parse
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.design import NoKernelError
from gossamer.compiler.language.statement import canonical, equation
from gossamer.compiler.language.steps import Step
from gossamer.compiler.language.types import types
from gossamer.compiler.language.zips import zipped
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.run.calls import Call, plan_for, refused, run
from gossamer.compiler.run.crossover import dense_wins
from gossamer.core.fallback import formats_of, refuse_fallback
from gossamer.core.interop import from_torch
from gossamer.core.join import WantsDenseGradient, build, tracked, wants_dense_gradient
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, as_format
from gossamer.native import BuildError
from gossamer.ops import operands
from gossamer.ops.by_hand import by_hand
from gossamer.ops.dense_steps import elementwise_step
from gossamer.ops.fills import filled
from gossamer.ops.forms import converted, form_for, is_traced, on_dense, tell_dense
from gossamer.ops.into import into
from gossamer.ops.planned import form_of, path_of, patterns_of, planned
from gossamer.ops.ready import Ready, ReadyPath, Recipe, keep, known, transformed
from gossamer.ops.traced import traced
from gossamer.ops.warm import last, remember
from gossamer.ops.windows import plainly

_LOG = logging.getLogger("gossamer")
_FUNC = "transforms of torch.func and forward-mode gradients have no kernels"
_HALF = (torch.float16, torch.bfloat16)


def einsum(
    expression: str,
    *tensors: Tensor,
    out: Format | Tensor | None = None,
    beta: float = 0.0,
    fill: float = 0.0,
    loops: Loops | None = None,
) -> Any:
    """Compute an expression in index notation over dense and sparse tensors; the loops are compiled for their formats.

    Parameters
    ----------
    expression
        As for ``torch.einsum``, and more: see ``language.notation``.
    *tensors
        The operands, dense or in any format.
    out
        Format of the result, or a tensor that the result is written to. The tensor must be dense, or sparse with all
        entries of the result. If you pass nothing, the first of these rules that applies is used:

        - a result with fewer than two dimensions is dense;
        - if one sparse operand has the indices of the result, and its zeros make the result zero, the result has the
          entries of this operand;
        - if every index of the result comes from sparse operands, the result is sparse, in the format of the first
          operand with the same number of dimensions, or else CSR or CSF;
        - otherwise the result is dense.
    beta
        If ``out`` is a tensor, it is multiplied by ``beta`` before the result is added.
    fill
        The value at positions that are not stored. If it is not 0, the result is dense. ``fill=inf`` with ``min:`` and
        sums, and ``fill=-inf`` with ``max:``, visit only stored entries: shortest and longest paths.
    loops
        The loops, given by hand; by default they are chosen. The whole expression is then one kernel.

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
    >>> gs.einsum("min: ik + kj -> ij", a, a, fill=float("inf"))
    tensor([[7., inf],
            [inf, 7.]])
    >>> total = torch.ones(2)
    >>> gs.einsum("ij->i", a, out=total, beta=1.0)
    tensor([4., 5.])
    """
    usual = out is None and loops is None and not fill and not beta
    if usual and is_dynamo_compiling():
        return torch.einsum(expression, *tensors)  # one call in the graph instead of all the code below
    if usual and (done := last(expression, tensors)) is not None:
        return done
    if out is not None and isinstance(out, Tensor):
        return into(out, beta, partial(einsum, expression, *tensors, fill=fill, loops=loops))
    if beta:
        raise ValueError(f"{expression!r}: beta={beta} needs a tensor as out, to which the result is added")
    if loops is not None:
        if fill:
            raise NotImplementedError(f"{loops}: loops of expressions with fill={fill} are always chosen")
        return by_hand(expression, tensors, None if out is None else as_format(out), loops)
    before = None if fill else known(expression, tensors, out)
    if before is None and isinstance(expression, str) and "+" in expression:
        given, before_cut, (expression, tensors) = expression, tensors, plainly(expression, tensors)
        if expression is not given:
            _tell_windows(before_cut, tensors)
            before = None if fill else known(expression, tensors, out)
    if before is not None:
        try:
            if out is None:
                remember(expression, tensors, before)
            return before(tensors)
        except BuildError:
            pass  # a new pattern may need a new kernel, and there may be no compiler any more
    if fill:
        return filled(expression, tensors, None if out is None else as_format(out), fill)
    format = None if out is None else as_format(out)
    tensors = tuple(from_torch(t) if _of_torch_sparse(t) else t for t in tensors)
    try:
        return _einsum(expression, tensors, format)
    except WantsDenseGradient:
        dense = [t.to_dense() if wants_dense_gradient(t) else t for t in tensors]
        return _einsum(expression, dense, format)


def _tell_windows(given: Sequence[Tensor], cut: Sequence[Tensor]) -> None:
    """Warn, or raise, if affine access made a sparse operand dense."""
    copied = [old for old, new in zip(given, cut, strict=True) if isinstance(old, SparseTensor) and old is not new]
    if copied:
        tell_dense(copied, "a sparse operand is read at sums of indices")


def _of_torch_sparse(t: Any) -> bool:
    return isinstance(t, Tensor) and not isinstance(t, SparseTensor) and t.layout != torch.strided


@lru_cache(maxsize=1)
def _without_compiler(why: str) -> None:
    """Say once that einsum computes on dense copies here."""
    _LOG.warning("gs.einsum computes on dense copies, because its kernels can't be built: %s", why)


def _einsum(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Any:
    if not tensors:
        raise NotationError(f"{expression!r}: there are no operands")
    operands.check(expression, tensors)
    if not is_traced(tensors):
        tensors = [operands.in_memory(t) for t in tensors]
    statement = parse(expression, [t.dim() for t in tensors])
    half = tensors[0].dtype if tensors[0].dtype in _HALF and not is_traced(tensors) else None
    half = None if gpu.on_gpu(tensors[0].device) else half  # a GPU kernel converts while it loads
    given = [t.float() if half else t for t in tensors]  # stored in half, summed in single precision
    run = _Run(expression, given, operands.sizes_of(expression, statement, tensors))
    path = path_of(statement, tensors)
    for step in path:
        run.step(step, out if step is path[-1] else None)
    if not half and all(run.ready) and any(isinstance(t, SparseTensor) for t in tensors):
        done = [(call, numbers) for call, numbers in zip(run.ready, run.numbers, strict=True) if call is not None]
        single = done[0][0] if len(done) == 1 else None
        keep(expression, tensors, out, single if isinstance(single, Ready) else ReadyPath(done))
    result = run.results[run.last]
    return result.to(half) if half else result


class _Run:
    """Steps of one call: their results by number, after the operands, and what can be kept for the next call."""

    def __init__(self, expression: str, tensors: Sequence[Tensor], sizes: dict[str, int]) -> None:
        self.expression, self.sizes, self.results = expression, sizes, list(tensors)
        self.ready: list[Any] = []  # of each step, a function of its operands; None if it can't be kept
        self.numbers: list[tuple[int, ...]] = []
        self.last = 0
        self._at = list(range(len(tensors)))  # where the results of ``steps`` are
        self._lasting = {id(t.structure) for t in tensors if isinstance(t, SparseTensor)}
        self._done: dict[Any, int] = {}

    def step(self, step: Step, out: Format | None) -> None:
        """Compute a step of the statement, in one kernel or in pairs."""
        self._at.append(self.whole(step.statement, [self._at[n] for n in step.operands], out))

    def whole(self, statement: Statement, numbers: list[int], out: Format | None) -> int:
        """Compute a statement: operands with one pattern are combined first, and products are planned."""
        own = [self.results[n] for n in numbers]
        if is_traced(own):
            return self.one(statement, tuple(numbers), out)
        if (split := zipped(statement, patterns_of(own))) is not None:
            form = form_of(statement, own, out)  # the result has the same form, whichever operands are combined
            part = split.parts[0]
            made = self.one(part.statement, tuple(numbers[k] for k in part.operands), 0)
            rest = [numbers[k] if k >= 0 else made for k in split.operands]
            if isinstance(form, int):  # its entries are those of the operand, or of what was combined with it
                like = rest.index(numbers[form]) if numbers[form] in rest else len(rest) - 1
                return self.one(split.whole, tuple(rest), like)
            return self.whole(split.whole, rest, form)
        found = planned(statement, own, out)
        if found is None:
            return self.one(statement, tuple(numbers), out)
        form = form_of(statement, own, out)
        for pair in found.steps:
            target: Format | int | None = Dense() if pair.makes == "dense" else None
            if pair is found.steps[-1]:
                target = pair.operands.index(form) if isinstance(form, int) else form
            numbers.append(self.one(pair.statement, tuple(numbers[n] for n in pair.operands), target))
        return numbers[-1]

    def one(self, statement: Statement, numbers: tuple[int, ...], out: Format | int | None) -> int:
        """Compute a statement, unless it was computed already; return the number of its result."""
        own = [self.results[n] for n in numbers]
        key = (canonical(statement), tuple(map(id, own)), out)
        if key in self._done:
            self.last = self._done[key]
            return self.last
        copies = operands.copies(statement, own, self.sizes)
        result, ready = _computed(self.expression, statement, own, out)
        lasting = all(id(t.structure) in self._lasting for t in own if isinstance(t, SparseTensor))
        self.ready.append(ready if copies == 1 and lasting else None)
        self.numbers.append(numbers)
        self.results.append(result if copies == 1 else result * copies)
        self.last = self._done[key] = len(self.results) - 1
        return self.last


def _no_kernels(tensor: Tensor, on_gpu: bool) -> str:
    """Why there is no kernel for tensors like this one."""
    dtype = str(tensor.dtype)[6:]
    if on_gpu or tensor.device.type == "cuda":
        return f"there are no GPU kernels for {dtype}"
    return f"there are no kernels for {dtype if tensor.device.type == 'cpu' else tensor.device.type} in this expression"


def _computed(
    expression: str, statement: Statement, tensors: Sequence[Tensor], out: Format | int | None
) -> tuple[Any, Any]:
    """Compute one step: its result, and a function for the next call on such tensors (None: there is none).

    ``out`` may be the number of the operand whose entries the result has.
    """
    kinds = types(statement, [t.dtype for t in tensors])
    sparse = any(isinstance(t, SparseTensor) for t in tensors)
    on_gpu = gpu.on_gpu(tensors[0].device)
    if not sparse:
        fused = elementwise_step(statement, tensors, out, kinds) if on_gpu else None
        again = fused or partial(on_dense, statement, out=out, dtype=kinds.result)
        return again(tensors), again
    if (tensors[0].device.type != "cpu" and not on_gpu) or kinds.compute is None:
        tell_dense(tensors, _no_kernels(tensors[0], on_gpu))
        return on_dense(statement, tensors, out, kinds.result), None
    if is_traced(tensors):
        assert not isinstance(out, int)
        made = traced(statement, tensors, out) if tensors[0].dtype in (kinds.compute, *_HALF) else None
        if made is not None:
            return made, None
        tell_dense(tensors, "the size of its result is not known in a trace" if not transformed(tensors) else _FUNC)
        return on_dense(statement, tensors, out, kinds.result), None
    if statement.reduce in ("max", "min") and any(tracked(t) for t in tensors):
        tell_dense(tensors, f"the gradient of a {statement.reduce} has no kernel")
        return on_dense(statement, tensors, Dense() if out is None else out, kinds.result), None
    sizes = operands.sizes_of(expression, statement, tensors)
    dtype = operands.stored_type(tensors, kinds.compute)
    inner, prepared = operands.prepare(statement, tensors, sizes, dtype)
    try:
        form, after = form_for(inner, prepared, out)
        why = refused(Call(inner, prepared, sizes, form), [p.values for p in prepared]) if on_gpu else None
        if why is not None:
            tell_dense(tensors, why)
            return on_dense(statement, tensors, out, kinds.result), None
        plan = plan_for(inner, [p.arg() for p in prepared], sizes, dtype, form, tensors[0].device)
        if dense_wins(plan):
            return torch.einsum(equation(inner), *(p.dense() for p in prepared)).to(kinds.result), None
        values, structure = run(inner, prepared, sizes, form)
    except NoKernelError as error:  # known only after the entries are counted
        tell_dense(tensors, str(error))
        return on_dense(statement, tensors, out, kinds.result), None
    except BuildError as error:
        refuse_fallback("gs.einsum", formats_of(tensors), f"its kernel can't be built: {error}")
        _without_compiler(str(error))
        return on_dense(statement, tensors, out, kinds.result), None
    values = values.to(kinds.result)
    as_they_are = after is None and all(
        (p.values.dtype == t.dtype == values.dtype) if p.structure is not None else p.values is t
        for p, t in zip(prepared, tensors, strict=True)
    )
    ready = Ready(plan, Recipe(inner, tuple(p.vars for p in prepared), sizes, dtype, form, {}))
    result = values if structure is None else build(values, structure)
    return (result if after is None else converted(result, after)), ready if as_they_are else None
