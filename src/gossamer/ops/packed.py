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

_below_autograd = torch._C._AutoDispatchBelowAutograd


@implements(F.linear, (Dense, PackedRows, Dense))
def linear_packed(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """x @ weight.T + bias."""
    rows, cols = weight._dense_shape if len(weight._dense_shape) == 2 else (0, -1)
    if input.shape[-1:] != (cols,) or input.dtype != weight._values.dtype:
        return NotImplemented
    if not available(weight._values) or input.device.type != "cpu" or input.dim() == 0:
        return NotImplemented
    x = input if input.dim() == 2 else input.reshape(-1, cols)
    if x.stride(1) != 1 or x.stride(0) < cols:
        x = x.contiguous()
    if torch.is_grad_enabled() and not torch.compiler.is_exporting():
        out = PackedLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
    else:
        out = _forward(x, weight, bias)
    return out if input.dim() == 2 else out.view(*input.shape[:-1], rows)


def _rows(weight: SparseTensor) -> Rows:
    structure = weight.structure
    if torch.compiler.is_compiling():
        return rows_of(structure)
    known = getattr(structure, "_rows", None)
    if known is None:
        known = structure._rows = rows_of(structure)  # type: ignore[attr-defined]
    return known


def _forward(x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
    arrays, sizes = _rows(weight)
    linear = torch.ops.gossamer.rows_linear
    values = weight._component("_values")
    if torch.compiler.is_compiling():
        return linear(*arrays, values, x, bias, *sizes, 0)  # type: ignore[no-any-return]
    with _below_autograd():
        return linear.default(*arrays, values, x, bias, *sizes, 0)  # type: ignore[no-any-return]


class PackedLinear(torch.autograd.Function):
    """x @ weight.T + bias in one node: what autograd costs is paid once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.version = weight, weight._values._version
        return _forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
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



