"""The product of a sparse and a dense matrix, differentiable as often as you like."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.formats.structure import Matrix
from gossamer.ops import kernels  # noqa: F401 - registers torch.ops.gossamer
from gossamer.tensor import SparseTensor, matrix_of


class Product(torch.autograd.Function):
    """op(A) @ x for the compressed matrix A; feature-major x, and either order of the result."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, x: Tensor, matrix: Matrix, flip: bool, tokens_first: bool) -> Tensor:
        ctx.save_for_backward(values, x)
        ctx.matrix, ctx.flip, ctx.tokens_first = matrix, flip, tokens_first
        return _spmm(values, x, matrix, flip, tokens_first)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
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
        return torch.ops.gossamer.sddmm(matrix.pos, matrix.crd, rows, cols, left, right)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        left, right = ctx.saved_tensors
        grad_left = Product.apply(grad, right, ctx.matrix, False, False) if ctx.needs_input_grad[0] else None
        grad_right = Product.apply(grad, left, ctx.matrix, True, False) if ctx.needs_input_grad[1] else None
        return grad_left, grad_right, None


def _stored(matrix: Matrix) -> tuple[int, int]:
    """Rows and columns of the matrix that the arrays describe."""
    return (matrix.cols, matrix.rows) if matrix.transposed else (matrix.rows, matrix.cols)


def _spmm(values: Tensor, x: Tensor, matrix: Matrix, flip: bool, tokens_first: bool) -> Tensor:
    rows, cols = _stored(matrix)
    return torch.ops.gossamer.spmm(matrix.pos, matrix.crd, values, rows, cols, flip, x, tokens_first)  # type: ignore[no-any-return]


def product(tensor: SparseTensor, x: Tensor, *, transpose: bool = False, tokens_first: bool = False) -> Tensor:
    """Return tensor @ x (or tensor.T @ x) for a sparse matrix and a dense one of the same type."""
    matrix, values = matrix_of(tensor)
    flip = matrix.transposed != transpose
    if torch.is_grad_enabled() and (values.requires_grad or x.requires_grad) and not torch.compiler.is_exporting():
        return Product.apply(values, x, matrix, flip, tokens_first)  # type: ignore[no-any-return,no-untyped-call]
    return _spmm(values, x, matrix, flip, tokens_first)
