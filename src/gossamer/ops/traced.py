"""Einsums inside a trace: one torch operator, whose loops are chosen when it runs.

A trace of ``torch.compile`` has no entries to choose loops by. So it records ``torch.ops.gossamer.einsum`` with the
expression, the formats, and the arrays and values of every operand; when that runs, structures are put together again
(once: they are kept as long as their arrays are) and :func:`gossamer.einsum` does the rest. The size of the result must
follow from the operands: it is dense, or has the entries of one of them. Others are computed on dense copies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gossamer.compiler import Statement, parse
from gossamer.compiler.gpu import kernel as gpu
from gossamer.compiler.gpu.design import NoKernelError
from gossamer.compiler.language.statement import write
from gossamer.compiler.planner.pairs import product_of
from gossamer.compiler.run.calls import Call, Prepared, gradient
from gossamer.compiler.run.infer import infer
from gossamer.core.join import build, values_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Structure, as_format
from gossamer.kernels.csr.operators import _library
from gossamer.native import BuildError
from gossamer.ops.ready import ORDINARY, transformed

_ARGUMENTS = "str expression, str[] formats, int[] sizes, Tensor[] tensors"
_library.define(f"einsum({_ARGUMENTS}) -> Tensor")
_library.define(f"einsum_grad({_ARGUMENTS}, Tensor grad, int operand) -> Tensor")
_HALF = (torch.float16, torch.bfloat16)
_structures: Any = WeakIdKeyDictionary()
_format = lru_cache(maxsize=256)(as_format)


def traced(statement: Statement, tensors: Sequence[Tensor], out: Format | None) -> Tensor | None:
    """Record an einsum in a trace; None if its result's size is not known there."""
    if torch.compiler.is_exporting() or statement.reduce not in ("sum", "mean") or transformed(tensors):
        return None
    structures = [t.structure if isinstance(t, SparseTensor) else None for t in tensors]
    if any(isinstance(t, SparseTensor) and t.grad_format is not None for t in tensors):
        return None
    if not _plain(statement, tensors):
        return None
    form = infer(statement, structures)
    if not isinstance(form, (int, Dense)) or (out is not None and not _same(out, form, structures)):
        return None
    formats, sizes, flat = [], [], []  # type: list[str], list[int], list[Tensor]
    for t, structure in zip(tensors, structures, strict=True):
        if structure is None:
            formats.append("")
            flat.append(t)
            continue
        assert isinstance(t, SparseTensor)
        formats.append(repr(t.format))
        sizes += [len(t._dense_shape), *t._dense_shape]
        flat += [values_of(t), *structure.arrays.values()]
    values = torch.ops.gossamer.einsum(write(statement), formats, sizes, flat)
    if isinstance(form, Dense):
        return values
    structure = structures[form]
    assert structure is not None
    return build(values, structure)


def _plain(statement: Statement, tensors: Sequence[Tensor]) -> bool:
    """Is nothing left to torch first: no diagonal, nothing that broadcasts, no index that one dense operand sums?"""
    sizes: dict[str, int] = {}
    for k, (group, t) in enumerate(zip(statement.inputs, tensors, strict=True)):
        others = {v for j, g in enumerate(statement.inputs) if j != k for v in g} | set(statement.output)
        if not group or len(set(group)) < len(group):
            return False
        if any(sizes.setdefault(v, size) != size for v, size in zip(group, t.shape, strict=True)):
            return False
        if not isinstance(t, SparseTensor) and not set(group) <= others:
            return False
    return True


def _same(out: Format, form: int | Dense, structures: Sequence[Structure | None]) -> bool:
    structure = None if isinstance(form, Dense) else structures[form]
    return isinstance(out, Dense) if structure is None else structure.format == out


# -- when it runs


def _operands(
    expression: str, formats: Sequence[str], sizes: Sequence[int], tensors: Sequence[Tensor]
) -> tuple[Statement, list[Prepared]]:
    """The statement and its operands."""
    found: list[tuple[Tensor, Structure | None]] = []
    rest, at = list(sizes), 0
    for name in formats:
        values, at = tensors[at], at + 1
        if not name:
            found.append((values, None))
            continue
        ndim, *rest = rest
        shape, rest = torch.Size(rest[:ndim]), rest[ndim:]
        format = _format(name)
        names = [f"{array}{n}" for n, level in enumerate(format.stack(ndim)) for array in level.arrays]
        arrays = dict(zip(names, tensors[at : at + len(names)], strict=True))
        at += len(names)
        found.append((values, _structure(format, shape, arrays, values.device)))
    statement = parse(expression, [v.dim() if s is None else len(s.shape) for v, s in found])
    prepared = [Prepared(v, s, g) for (v, s), g in zip(found, statement.inputs, strict=True)]
    return statement, prepared


def _structure(format: Format, shape: torch.Size, arrays: dict[str, Tensor], device: torch.device) -> Structure:
    """The structure of these arrays; the same one again, so that what is known about it stays."""
    last = next(reversed(arrays.values()), None)
    known = None if last is None else _structures.get(last)
    if known is not None and (known.format, known.shape) == (format, shape):
        if all(known.arrays[name] is array for name, array in arrays.items()):
            return known
    made = Structure(format, shape, arrays, device)
    if last is not None:
        _structures[last] = made
    return made


def _sizes(prepared: Sequence[Prepared]) -> dict[str, int]:
    shapes = [p.values.shape if p.structure is None else p.structure.shape for p in prepared]
    return {v: size for p, shape in zip(prepared, shapes, strict=True) for v, size in zip(p.vars, shape, strict=True)}


def _run(expression: str, formats: Sequence[str], sizes: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
    plain = [t if type(t) in ORDINARY else t.as_subclass(Tensor) for t in tensors]  # a subclass with memory of its own
    _, prepared = _operands(expression, formats, sizes, plain)
    given = [p.values if p.structure is None else SparseTensor(p.values, p.structure) for p in prepared]
    with torch.no_grad():
        result = _einsum()(expression, *given)
    values = result._values if isinstance(result, SparseTensor) else result
    own = all(values.data_ptr() != t.data_ptr() for t in tensors) or not values.numel()
    return values.contiguous() if own else values.clone(memory_format=torch.contiguous_format)


def _einsum() -> Any:
    from gossamer.ops.einsum import einsum  # which records with this module

    return einsum


def _run_grad(
    expression: str,
    formats: Sequence[str],
    sizes: Sequence[int],
    tensors: Sequence[Tensor],
    grad: Tensor,
    operand: int,
) -> Tensor:
    statement, prepared = _operands(expression, formats, sizes, tensors)
    if len(prepared) > 2 and product_of(statement) is not None:  # planned into pairs, each with its own gradient
        return _gradient_by_autograd(expression, prepared, grad, operand)
    dtype = grad.dtype
    if dtype in _HALF and not gpu.on_gpu(grad.device):  # summed in single precision
        prepared = [Prepared(p.values.float(), p.structure, p.vars) for p in prepared]
        grad = grad.float()
    form = infer(statement, [p.structure for p in prepared])
    out: str | int = form if isinstance(form, int) else "dense"
    call = Call(statement, prepared, _sizes(prepared), out)
    structure = prepared[form].structure if isinstance(form, int) else None
    values = [p.values.resolve_neg() for p in prepared]
    try:
        with torch.no_grad():
            found = gradient(call, values, grad.resolve_neg().contiguous(), structure, operand)
    except (BuildError, NoKernelError):
        found = _gradient_by_autograd(expression, prepared, grad, operand)
    return found.to(dtype).view(prepared[operand].values.shape)


def _gradient_by_autograd(expression: str, prepared: Sequence[Prepared], grad: Tensor, operand: int) -> Tensor:
    """The gradient of a product that is planned, or where there is no compiler: that of the call itself."""
    with torch.enable_grad():
        values = [p.values.detach() for p in prepared]
        leaf = values[operand] = values[operand].requires_grad_()
        pairs = zip(values, prepared, strict=True)
        result = _einsum()(expression, *(v if p.structure is None else build(v, p.structure) for v, p in pairs))
        out = values_of(result) if isinstance(result, SparseTensor) else result
        return torch.autograd.grad(out, leaf, grad)[0]


def _fake(expression: str, formats: Sequence[str], sizes: Sequence[int], tensors: Sequence[Tensor]) -> Tensor:
    statement, prepared = _operands(expression, formats, sizes, tensors)
    form = infer(statement, [p.structure for p in prepared])
    if isinstance(form, int):
        return torch.empty_like(prepared[form].values, memory_format=torch.contiguous_format)
    known = _sizes(prepared)
    return tensors[0].new_empty([known[v] for v in statement.output])


def _fake_grad(
    expression: str,
    formats: Sequence[str],
    sizes: Sequence[int],
    tensors: Sequence[Tensor],
    grad: Tensor,
    operand: int,
) -> Tensor:
    _, prepared = _operands(expression, formats, sizes, tensors)
    return torch.empty_like(prepared[operand].values, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.expression, ctx.formats, ctx.sizes, tensors = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    tensors = list(ctx.saved_tensors)
    given = (ctx.expression, ctx.formats, ctx.sizes, tensors)
    grads: list[Tensor | None] = [None] * len(tensors)
    for operand, place in enumerate(_places(ctx.formats, ctx.sizes)):
        if ctx.needs_input_grad[3][place]:
            grads[place] = torch.ops.gossamer.einsum_grad(*given, grad, operand)
    return None, None, None, grads


def _places(formats: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """Where the values of each operand are among the tensors."""
    places, at, rest = [], 0, list(sizes)
    for name in formats:
        places.append(at)
        at += 1
        if name:
            ndim, *rest = rest
            rest = rest[ndim:]
            at += sum(len(level.arrays) for level in _format(name).stack(ndim))
    return places


for _device in ("CPU", "CUDA"):
    _library.impl("einsum", _run, _device)
    _library.impl("einsum_grad", _run_grad, _device)
_library._register_fake("einsum", _fake)
_library._register_fake("einsum_grad", _fake_grad)
torch.library.register_autograd("gossamer::einsum", _backward, setup_context=_keep, lib=_library)
