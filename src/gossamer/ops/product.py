"""The product of a sparse and a dense matrix, differentiable as often as you like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor, build, mask_padding, matrix_of, tracked
from gossamer.formats.structure import Matrix
from gossamer.kernels.csr import operators as kernels


class Product(torch.autograd.Function):
    """op(A) @ x for the compressed matrix A; feature-major x, and either order of the result."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, matrix: Matrix, flip: bool, tokens_first: bool) -> Tensor:
        ctx.save_for_backward(values, x)
        ctx.matrix, ctx.flip, ctx.tokens_first = matrix, flip, tokens_first
        return _spmm(values, x, matrix, flip, tokens_first)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        values, x = ctx.saved_tensors
        grad = grad.t() if ctx.tokens_first else grad
        grad_values = grad_x = None
        if ctx.needs_input_grad[0]:
            left, right = (x, grad) if ctx.flip else (grad, x)
            grad_values = Sample.apply(left, right, ctx.matrix)
        if ctx.needs_input_grad[1]:
            grad_x = Product.apply(values, grad, ctx.matrix, not ctx.flip, False)
        return grad_values, grad_x, None, None, None


class Sample(torch.autograd.Function):
    """left @ right.T at the stored positions of a matrix."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, matrix: Matrix) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.matrix = matrix
        rows, cols = _stored(matrix)
        return torch.ops.gossamer.sddmm(matrix.pos, matrix.crd, rows, cols, left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        left, right = ctx.saved_tensors
        grad_left = Product.apply(grad, right, ctx.matrix, False, False) if ctx.needs_input_grad[0] else None
        grad_right = Product.apply(grad, left, ctx.matrix, True, False) if ctx.needs_input_grad[1] else None
        return grad_left, grad_right, None


def _stored(matrix: Matrix) -> tuple[int, int]:
    """Rows and columns of the matrix that the arrays describe."""
    return (matrix.cols, matrix.rows) if matrix.transposed else (matrix.rows, matrix.cols)


def _spmm(values: Tensor, x: Tensor, matrix: Matrix, flip: bool, tokens_first: bool) -> Tensor:
    rows, cols = _stored(matrix)
    # the dispatcher is for traces and tensors of other kinds; plain ones go straight to the kernel, 5 us sooner
    plain = type(values) is Tensor and type(x) is Tensor and not torch._C._len_torch_dispatch_stack()
    spmm = kernels.spmm if plain and not torch.compiler.is_compiling() else torch.ops.gossamer.spmm
    return spmm(matrix.pos, matrix.crd, values, rows, cols, flip, x, tokens_first)


def product(tensor: SparseTensor, x: Tensor, *, transpose: bool = False, tokens_first: bool = False) -> Tensor:
    """Return tensor @ x (or tensor.T @ x) for a sparse matrix and a dense one of the same type."""
    matrix, values = matrix_of(tensor)
    flip = matrix.transposed != transpose
    if (tracked(values) or tracked(x)) and not torch.compiler.is_exporting():
        return Product.apply(values, x, matrix, flip, tokens_first)
    return _spmm(values, x, matrix, flip, tokens_first)


class Linear(torch.autograd.Function):
    """x @ weight.T + bias in one node: what autograd costs is paid once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.version = weight, weight._values._version
        matrix, values = matrix_of(weight)
        out = _spmm(values, x.t(), matrix, matrix.transposed, True)
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), weight = ctx.saved_tensors, ctx.weight
        if weight._values._version != ctx.version:
            raise RuntimeError("the values of a sparse weight were modified in place between forward and backward")
        grad_x = grad_weight = None
        if ctx.needs_input_grad[0]:
            grad_x = product(weight, grad.t(), transpose=True, tokens_first=True)
        if ctx.needs_input_grad[1]:
            grad_weight = grad.t() @ x if weight.grad_format is not None else sampled(grad.t(), x.t(), weight)
        return grad_x, grad_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


def sampled(left: Tensor, right: Tensor, like: SparseTensor) -> SparseTensor:
    """Return left @ right.T at the stored positions of a matrix, as a tensor of its structure."""
    structure = like.structure
    matrix = structure.matrix()
    pair = (right, left) if matrix.transposed else (left, right)
    entries = Sample.apply(*pair, matrix)
    if matrix.index is not None:
        entries = entries.new_zeros(like._values.numel()).index_put((matrix.index,), entries)
    return build(mask_padding(entries.view(like._values.shape), structure), structure)


def linear(x: Tensor, weight: SparseTensor, bias: Tensor | None) -> Tensor:
    """Return x @ weight.T + bias for a matrix x of tokens."""
    if not torch.is_grad_enabled() or torch.compiler.is_exporting():
        out = product(weight, x.t(), tokens_first=True)
        return out if bias is None else out + bias
    return Linear.apply(x, weight, bias)


def _spmm_autograd(
    pos: Tensor, crd: Tensor, values: Tensor, rows: int, cols: int, transposed: bool, x: Tensor, tokens_first: bool
) -> Tensor:
    if torch.is_grad_enabled() and (values.requires_grad or x.requires_grad):
        matrix = Matrix(pos, crd, rows, cols, False, None)
        return Product.apply(values, x, matrix, transposed, tokens_first)
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.spmm(pos, crd, values, rows, cols, transposed, x, tokens_first)


def _sddmm_autograd(pos: Tensor, crd: Tensor, rows: int, cols: int, left: Tensor, right: Tensor) -> Tensor:
    if torch.is_grad_enabled() and (left.requires_grad or right.requires_grad):
        return Sample.apply(left, right, Matrix(pos, crd, rows, cols, False, None))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.sddmm(pos, crd, rows, cols, left, right)


kernels._library.impl("spmm", _spmm_autograd, "Autograd")
kernels._library.impl("sddmm", _sddmm_autograd, "Autograd")
