"""linear with a packed weight: by the native kernels where there are some, else as any other format."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import Dense
from gossamer.formats.packed import PackedRows
from gossamer.ops.packed_kernels import Rows, available, rows_of
from gossamer.ops.registry import implements
from gossamer.tensor import SparseTensor, build, values_of

_forward_op = torch.ops.gossamer.rows_forward.default


@implements(F.linear, (Dense, PackedRows, Dense))
def linear_packed(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """X @ weight.T + bias."""
    values = weight._values
    shape = weight._dense_shape
    if len(shape) != 2 or input.shape[-1:] != shape[1:] or input.dtype is not values.dtype or not available(values):
        return NotImplemented
    x = input if input.dim() == 2 else input.reshape(-1, shape[1])
    if not x.is_contiguous() and (x.stride(1) != 1 or x.stride(0) < shape[1]):
        x = x.contiguous()
    if torch.is_grad_enabled() and not torch.compiler.is_exporting():
        out = PackedLinear.apply(x, weight, bias)
    else:
        out = _forward(x, weight, bias)
    return out if input.dim() == 2 else out.view(*input.shape[:-1], shape[0])


def _rows(weight: SparseTensor) -> Rows:
    if torch.compiler.is_compiling():
        return rows_of(weight.structure)
    structure = weight._structure
    known = structure.__dict__.get("_rows")
    if known is None:
        known = structure.__dict__["_rows"] = rows_of(structure)
    return known


def _forward(x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
    arrays, sizes = _rows(weight)
    return _forward_op(*arrays, weight._component("_values"), x, bias, *sizes, 0)


class PackedLinear(torch.autograd.Function):
    """x @ weight.T + bias in one node: what autograd costs is paid once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.version = weight, weight._values._version
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        if weight._values._version != ctx.version:
            raise RuntimeError("the values of a sparse weight were modified in place between forward and backward")
        arrays, sizes = _rows(weight)
        grad = grad.contiguous()
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.ops.gossamer.rows_linear_t(*arrays, values_of(weight), grad, *sizes)
        if ctx.needs_input_grad[1]:
            grad_weight = grad.t() @ x if weight.grad_format is not None else _sampled(arrays, sizes, grad, x, weight)
        return grad_x, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def _sampled(arrays: Any, sizes: Any, grad: Tensor, x: Tensor, weight: SparseTensor) -> SparseTensor:
    return build(torch.ops.gossamer.rows_sample(*arrays, grad, x, *sizes), weight.structure)
