"""linear, conv2d and matmul with a packed weight or one of blocks: by the native kernels where there are some."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, build, tracked, values_of
from gossamer.formats import BSR, CSR, Dense, Format, PackedNM, PackedVNM, Structure
from gossamer.formats.packed import PackedRows
from gossamer.kernels.blocks import operators as block_kernels
from gossamer.kernels.blocks.operators import Blocks, blocks_of
from gossamer.kernels.rows import operators as packed_kernels
from gossamer.kernels.rows.operators import NATIVE, Rows, available, rows_of
from gossamer.ops import product, vnm
from gossamer.ops.layers import _padding as padding_of
from gossamer.ops.layers import _pair as pair

_forward_op = torch.ops.gossamer.rows_forward.default
_blocks_op = torch.ops.gossamer.blocks_forward.default
_int8_op = torch.ops.gossamer.rows_int8.default
_rows_sample = torch.ops.gossamer.rows_sample_forward.default
_blocks_sample = torch.ops.gossamer.blocks_sample_forward.default


@implements(F.linear, (Dense, BSR, Dense))
@implements(F.linear, (Dense, PackedRows, Dense))
def linear_packed(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """Return x @ weight.T + bias."""
    return fused_linear(input, weight, bias, 0)


def fused_linear(input: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int) -> Any:
    """Return act(x @ weight.T + bias), the activation in the kernel; NotImplemented where there is no kernel."""
    shape = weight._dense_shape
    if len(shape) != 2 or input.dim() == 0 or input.shape[-1] != shape[1] or _turned(weight):
        return NotImplemented
    if not _takes(input, weight):
        on_gpu = weight._values.is_cuda and isinstance(weight.format, PackedRows)
        return _on_gpu(input, weight, bias, activation) if on_gpu else NotImplemented
    if input.dim() == 2:
        return _product(input, weight, bias, activation)
    return _product(input.reshape(-1, shape[1]), weight, bias, activation).view(*input.shape[:-1], shape[0])


def _on_gpu(input: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int) -> Any:
    """2:4 goes to the tensor cores, the rest to the kernel of compressed rows; gradients and traces as any format."""
    if torch.is_grad_enabled() and any(t is not None and tracked(t) for t in (input, weight, bias)):
        return NotImplemented
    if torch.compiler.is_compiling():
        return NotImplemented
    if isinstance(weight.format, PackedNM) and (weight.format.n, weight.format.m) == (2, 4):
        return vnm.fused_linear(input, read_as(weight, PackedVNM("all", 2, 4)), bias, activation)
    if activation or input.dtype is not weight._values.dtype:
        return NotImplemented
    x = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
    out = product.linear(x, read_as(weight, CSR()), bias)
    return out if input.dim() == 2 else out.view(*input.shape[:-1], out.shape[1])


def read_as(weight: SparseTensor, format: Format) -> SparseTensor:
    """Return a weight in the format that a GPU reads; made once for the values it holds, and kept with their structure.

    The formats of the CPU kernels have their bytes in an order that a GPU reads slowly: a kernel that took Condensed as
    it is needed four times as long as that of CSR on an H200.
    """
    values, kept = weight._values, weight._structure.__dict__
    version = None if values.is_inference() else values._version  # those of inference mode change unseen
    known = kept.get("_elsewhere")
    # the tensor itself, not its address: another with the same structure may come to lie where this one was
    if known is None or version is None or known[0]() is not values or known[1] != version:
        with torch.no_grad():
            known = kept["_elsewhere"] = (weakref.ref(values), version, weight.to_format(format))
    return known[2]


@implements(F.conv2d, (Dense, BSR, Dense))
@implements(F.conv2d, (Dense, PackedRows, Dense))
def conv2d_packed(
    input: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolution: patches of the input are the tokens."""
    if (
        groups != 1
        or input.dim() != 4
        or weight.grad_format is not None
        or not _takes(input, weight)
        or _turned(weight)
    ):
        return NotImplemented
    rows, channels, *kernel = weight._dense_shape
    size, step, gap = (kernel[0], kernel[1]), pair(stride), pair(dilation)
    pad = padding_of(padding, size, gap, step)
    if pad is None or input.shape[1] != channels:
        return NotImplemented
    x = F.pad(input, pad) if any(pad) else input
    height, width = ((x.shape[2 + i] - gap[i] * (size[i] - 1) - 1) // step[i] + 1 for i in (0, 1))
    if height < 1 or width < 1:
        return NotImplemented
    patches = x if size == step == (1, 1) else F.unfold(x, size, gap, 0, step)  # batch, channels * kernel, places
    tokens = patches.flatten(2).transpose(1, 2).reshape(-1, channels * size[0] * size[1])
    out = _product(tokens, weight, bias).view(x.shape[0], height * width, rows)
    return out.transpose(1, 2).reshape(x.shape[0], rows, height, width)


@implements(torch.matmul, (BSR, Dense))
@implements(torch.matmul, (PackedRows, Dense))
def matmul_packed(input: SparseTensor, other: Tensor, *reduce: Any) -> Any:
    """Return weight @ x for a vector or matrix x; what ``torch.sparse.mm`` may ask for besides is not for it."""
    shape = input._dense_shape
    if reduce or not isinstance(input, SparseTensor) or len(shape) != 2 or other.dim() not in (1, 2):
        return NotImplemented
    if other.shape[0] != shape[1] or input.grad_format is not None or not _takes(other, input) or _turned(input):
        return NotImplemented
    return _product(other.view(1, -1), input, None)[0] if other.dim() == 1 else _product(other.t(), input, None).t()


for _name in ("mm", "mv", "__matmul__"):
    implements(_name, (PackedRows, Dense))(matmul_packed)
    implements(_name, (BSR, Dense))(matmul_packed)


@implements(torch.addmm, (Dense, Dense, BSR))
@implements(torch.addmm, (Dense, Dense, PackedRows))
def addmm_packed(input: Tensor, mat1: Tensor, mat2: SparseTensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """Return input + mat1 @ mat2 for a weight with its inputs first, packed by columns (Conv1D of transformers)."""
    fits = isinstance(mat2, SparseTensor) and _turned(mat2) and len(mat2._dense_shape) == 2
    if not fits or mat2.grad_format is not None or not _takes(mat1, mat2):
        return NotImplemented
    plain = beta == alpha == 1 and input.dtype is mat1.dtype and input.shape == mat2._dense_shape[1:]
    if not plain or mat1.dim() != 2 or mat1.shape[1] != mat2._dense_shape[0]:
        return NotImplemented
    return _product(mat1, mat2, input)


def matmul_turned(input: Tensor, other: SparseTensor, *reduce: Any) -> Any:
    """Return x @ weight for a weight packed by columns, as :func:`matmul_packed`."""
    fits = not reduce and isinstance(other, SparseTensor) and _turned(other) and len(other._dense_shape) == 2
    if not fits or other.grad_format is not None or not _takes(input, other):
        return NotImplemented
    rows, cols = other._dense_shape
    if input.dim() < 2 or input.shape[-1] != rows:
        return NotImplemented
    return _product(input.reshape(-1, rows), other, None).view(*input.shape[:-1], cols)


for _name in ("matmul", "__matmul__", "mm"):
    implements(_name, (Dense, PackedRows))(matmul_turned)
    implements(_name, (Dense, BSR))(matmul_turned)


def _turned(weight: SparseTensor) -> bool:
    return weight.format.order not in (None, (0, 1))


def _takes(x: Tensor, weight: SparseTensor) -> bool:
    return x.dtype is weight._values.dtype and available(weight._values)


def _product(x: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int = 0) -> Tensor:
    """X @ weight.T + bias for a matrix x of tokens, whatever its strides; an activation only without gradients."""
    if not x.is_contiguous() and (x.stride(1) != 1 or x.stride(0) < x.shape[1]):
        x = x.contiguous()
    if torch.is_grad_enabled() and not activation and not torch.compiler.is_exporting():
        return PackedLinear.apply(x, weight, bias)
    return _forward(x, weight, bias, activation)


def _rows(weight: SparseTensor) -> Rows | Blocks:
    """What the operators take, kept with the structure."""
    return _arrays_of(weight.structure if torch.compiler.is_compiling() else weight._structure)


def _arrays_of(structure: Structure) -> Rows | Blocks:
    of = blocks_of if isinstance(structure.format, BSR) else rows_of
    if torch.compiler.is_compiling():
        return of(structure)
    known = structure.__dict__.get("_rows")
    if known is None:
        known = structure.__dict__["_rows"] = of(structure)
    return known


def _forward(x: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int = 0) -> Tensor:
    arrays, sizes = _rows(weight)
    values = weight._component("_values")
    op = _blocks_op if isinstance(weight.format, BSR) else _forward_op
    if values.dtype in NATIVE:
        return op(*arrays, values, x, bias, *sizes, activation)
    shift = None if bias is None else bias.float()
    return op(*arrays, values.float(), x.float(), shift, *sizes, activation).to(x.dtype)


def _native(t: Tensor) -> Tensor:
    return t if t.dtype in NATIVE else t.float()


def linear_int8(x: Tensor, values: Tensor, structure: Structure, scale: Tensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias for a packed weight of int8 values and the scales of its rows."""
    arrays, sizes = _arrays_of(structure)
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    flat = (flat if flat.dtype is torch.float32 else flat.float()).contiguous()
    scale = scale if scale.dtype is torch.float32 else scale.float()
    shift = bias if bias is None or bias.dtype is torch.float32 else bias.float()
    out = _int8_op(*arrays, values, scale, flat, shift, *sizes, 0)
    out = out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[-1])
    return out if x.dtype is torch.float32 else out.to(x.dtype)


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
        turned, sample = _gradients(grad, isinstance(weight.format, BSR))
        if ctx.needs_input_grad[0]:
            grad_x = turned(*arrays, _native(values_of(weight)), _native(grad), *sizes).to(x.dtype)
        if ctx.needs_input_grad[1] and weight.grad_format is not None:
            grad_weight = grad.t() @ x
        elif ctx.needs_input_grad[1]:
            values = sample(*arrays, _native(grad), _native(x), *sizes, *weight._values.shape[1:])
            grad_weight = build(values.to(x.dtype), weight.structure)
        return grad_x, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def _gradients(grad: Tensor, blocks: bool) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """Return grad @ A and the sampled product: without autograd where nobody will differentiate them or trace them."""
    if torch.is_grad_enabled() or type(grad) is not Tensor or torch.compiler.is_compiling():
        ops = torch.ops.gossamer
        return (ops.blocks_linear_t, ops.blocks_sample) if blocks else (ops.rows_linear_t, ops.rows_sample)
    return (block_kernels.linear_t, _blocks_sample) if blocks else (packed_kernels.linear_t, _rows_sample)
