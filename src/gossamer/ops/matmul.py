"""linear, matmul and their family."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, entries_of, from_entries, values_of
from gossamer.formats import CSR, Dense, Format, Masked
from gossamer.ops import product
from gossamer.ops.bridge import task


def _rows(x: Tensor) -> Tensor:
    """All but the last dimension as one, even where that leaves nothing."""
    return x if x.dim() == 2 else x.flatten(0, -2) if x.dim() > 2 else x.unsqueeze(0)


@implements(F.linear, (Dense, Format, Dense))
def linear(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """Return x @ weight.T + bias for a sparse weight."""
    shape = weight._dense_shape
    if len(shape) != 2 or input.dtype != weight._values.dtype or input.shape[-1:] != shape[1:]:
        return NotImplemented  # torch's own error, from the dense path
    if input.dim() == 2:
        return product.linear(input, weight, bias)
    return product.linear(_rows(input), weight, bias).view(*input.shape[:-1], shape[0])


@implements(F.linear, (Format, Format, Format))
def linear_sparse_input(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Return x @ weight.T + bias for a sparse x, such as a sparse activation."""
    if input.dim() < 1 or weight.dim() != 2 or input.shape[-1] != weight.shape[1]:
        return NotImplemented
    out = matmul(_rows(input), weight.t())
    if out is NotImplemented:
        return NotImplemented
    out = out.to_dense() if isinstance(out, SparseTensor) else out
    out = out if bias is None else out + bias
    return out.view(*input.shape[:-1], weight.shape[0])


@implements(F.linear, (Dense, Masked, Dense))
def linear_masked(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Tensor:
    """A masked weight is a dense one whose other values are zero."""
    return F.linear(input, values_of(weight) if weight.grad_format is None else weight.to_dense(), bias)


@implements(torch.matmul, (Format, Format))
def matmul(input: Tensor, other: Tensor) -> Any:
    """Product of a sparse matrix with a dense tensor, on either side; sparse x sparse is sparse."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        return _both_sparse(input, other)
    if isinstance(input, SparseTensor):
        return _sparse_dense(input, other)
    if not isinstance(other, SparseTensor):
        return NotImplemented
    return _dense_sparse(input, other)


def _sparse_dense(a: SparseTensor, b: Tensor) -> Any:
    shape = a._dense_shape
    if a._values.dtype != b.dtype or a.grad_format is not None:
        return NotImplemented
    if (compiled := task("matmul", (a, b))) is not None:
        return compiled.run()
    if len(shape) == 3 and b.dim() == 3:
        return _batched(a, b)
    if not shape or b.dim() not in (1, 2) or b.shape[0] != shape[-1]:
        return NotImplemented
    rows = a if len(shape) == 2 else _rows(a)
    out = product.product(rows, b if b.dim() == 2 else b[:, None])  # type: ignore[arg-type]
    return out if len(shape) == 2 and b.dim() == 2 else out.view((*shape[:-1], *b.shape[1:]))


def _dense_sparse(a: Tensor, b: SparseTensor) -> Any:
    shape = b._dense_shape
    if b._values.dtype != a.dtype or b.grad_format is not None:
        return NotImplemented
    if len(shape) == 3 and a.dim() == 3:
        out = _batched(_swap_last(b), a.transpose(1, 2))
        return out if out is NotImplemented else out.transpose(1, 2)
    if len(shape) == 1 and a.dim() > 0 and a.shape[-1] == shape[0]:
        return product.product(b, _rows(a).t(), tokens_first=True).view(a.shape[:-1])
    if len(shape) != 2 or a.dim() == 0 or a.shape[-1] != shape[0]:
        return NotImplemented
    out = product.product(b, _rows(a).t(), transpose=True, tokens_first=True)
    return out.view(*a.shape[:-1], shape[1])


def _both_sparse(a: SparseTensor, b: SparseTensor) -> Any:
    """Vectors are matrices of one row or column; batches are one matrix of blocks on the diagonal."""
    left, right = a._dense_shape, b._dense_shape
    if len(left) in (1, 2) and len(right) in (1, 2) and left[-1] == right[0]:
        out = _sparse_sparse(a if len(left) == 2 else a.unsqueeze(0), b if len(right) == 2 else b.unsqueeze(1))  # type: ignore[arg-type]
    elif len(left) == len(right) == 3 and right[:2] == (left[0], left[2]):
        out = _sparse_sparse(_on_diagonal(a), b.flatten(0, 1))  # type: ignore[arg-type]
    else:
        return NotImplemented
    return out if out is NotImplemented else out.reshape((*left[:-1], *right[1 if len(right) < 3 else 2 :]))


def _batched(a: SparseTensor, b: Tensor) -> Any:
    """Multiply the matrices of two batches, pair by pair."""
    batch, rows, cols = a._dense_shape
    if b.shape[:2] != (batch, cols):
        return NotImplemented
    return product.product(_on_diagonal(a), b.flatten(0, 1)).view(batch, rows, b.shape[2])


def _on_diagonal(a: SparseTensor) -> SparseTensor:
    """Make one matrix, of blocks on the diagonal, of a batch of matrices."""
    batch, rows, cols = a._dense_shape
    keys, values = entries_of(a)
    block, inside = keys // max(rows * cols, 1), keys % max(rows * cols, 1)
    row, col = block * rows + inside // max(cols, 1), block * cols + inside % max(cols, 1)
    return from_entries(row * (batch * cols) + col, values, (batch * rows, batch * cols), CSR())  # type: ignore[return-value]


def _swap_last(t: SparseTensor) -> SparseTensor:
    batch, rows, cols = t._dense_shape
    keys, values = entries_of(t)
    block, inside = keys // max(rows * cols, 1), keys % max(rows * cols, 1)
    swapped = block * (rows * cols) + (inside % max(cols, 1)) * rows + inside // max(cols, 1)
    return from_entries(swapped, values, (batch, cols, rows), t.format.general())  # type: ignore[return-value]


def _sparse_sparse(a: SparseTensor, b: SparseTensor) -> Any:
    """Row by row (Gustavson) without a loop: every entry of A meets the row of B that it names."""
    if a._values.dtype != b._values.dtype:
        return NotImplemented  # torch's own error, from the dense path
    if (compiled := task("matmul", (a, b))) is not None:
        return compiled.run()
    rows, inner = a._dense_shape
    cols = b._dense_shape[1]
    keys, left = entries_of(a)
    others, right = entries_of(b)
    order = torch.argsort(others)
    others, right = others[order], right[order]
    pos = torch.searchsorted(others, torch.arange(inner + 1, device=others.device) * cols)
    middle = keys % max(inner, 1)
    count = pos[middle + 1] - pos[middle]
    mine = torch.repeat_interleave(torch.arange(keys.numel(), device=keys.device), count)
    first = torch.cumsum(count, 0) - count
    theirs = pos[middle][mine] + torch.arange(mine.numel(), device=keys.device) - first[mine]
    products = left[mine] * right[theirs]
    number = keys[mine] // max(inner, 1) * cols + others[theirs] % max(cols, 1)
    unique, inverse = torch.unique(number, return_inverse=True)
    summed = products.new_zeros(unique.numel()).index_add(0, inverse, products)
    return from_entries(unique, summed, (rows, cols), a.format.general())


implements("__matmul__", (Format, Format))(matmul)


def _strict(left: int, right: int) -> Any:
    """Return matmul for operands of just these numbers of dimensions."""

    def run(input: Tensor, mat2: Tensor, *more: Any) -> Any:
        fits = not more and input.dim() == left and mat2.dim() == right
        return matmul(input, mat2) if fits else NotImplemented

    return run


def _added(left: int, right: int) -> Any:
    """Return beta * input + alpha * (a @ b) for operands of just these numbers of dimensions."""

    def run(input: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
        if a.dim() != left or b.dim() != right or not input.dtype == a.dtype == b.dtype:
            return NotImplemented
        sparse = isinstance(a, SparseTensor) or isinstance(b, SparseTensor)
        if not sparse and a.shape[-1] != b.shape[right - 2 if right > 1 else 0]:
            return NotImplemented
        out = matmul(a, b) if sparse else torch.matmul(a, b)
        if out is NotImplemented or torch.broadcast_shapes(out.shape, input.shape[-out.dim() :]) != out.shape:
            return NotImplemented
        scaled = out if alpha == 1 else alpha * out
        return scaled if beta == 0 else scaled + (input if beta == 1 else beta * input)

    return run


for _name, _dims in {"mm": (2, 2), "mv": (2, 1), "bmm": (3, 3)}.items():
    implements(_name, (Format, Format))(_strict(*_dims))
for _name, _dims in {"addmm": (2, 2), "addmv": (2, 1), "baddbmm": (3, 3)}.items():
    implements(_name, (Format, Format, Format))(_added(*_dims))


@implements(torch.dot, (Format, Format))
def dot(input: Tensor, tensor: Tensor) -> Any:
    """Sum of the products of two vectors."""
    if input.dim() != 1 or input.shape != tensor.shape or input.dtype != tensor.dtype:
        return NotImplemented
    return (input * tensor).sum()


implements(torch.vdot, (Format, Format))(lambda a, b: dot(a, b) if not a.is_complex() else NotImplemented)


@implements(torch.inner, (Format, Format))
def inner(input: Tensor, other: Tensor) -> Any:
    """Products along the last dimension of both."""
    if input.dim() == other.dim() == 1:
        return dot(input, other)
    fits = input.dim() >= 1 and other.dim() == 2 and input.dtype == other.dtype and input.shape[-1] == other.shape[1]
    return linear_sparse_input(input, other) if fits else NotImplemented


@implements(torch.linalg.vecdot, (Format, Format))
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Any:
    """Sum of the products along one dimension."""
    if x.is_complex() or x.dtype != y.dtype or x.shape != y.shape or not x.dim():
        return NotImplemented
    return (x * y).sum(dim)


@implements(torch.outer, (Format, Format))
def outer(input: Tensor, vec2: Tensor) -> Any:
    """Outer product of two sparse vectors: sparse."""
    if not (isinstance(input, SparseTensor) and isinstance(vec2, SparseTensor)) or input.dim() != 1 or vec2.dim() != 1:
        return NotImplemented
    (ka, va), (kb, vb) = entries_of(input), entries_of(vec2)
    keys = (ka[:, None] * vec2._dense_shape[0] + kb).reshape(-1)
    shape = (input._dense_shape[0], vec2._dense_shape[0])
    return from_entries(keys, (va[:, None] * vb).reshape(-1), shape, input.format.general())
