"""linear, matmul and their family."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import CSR, Dense, Format, Masked
from gossamer.ops import product
from gossamer.ops.registry import implements
from gossamer.tensor import SparseTensor, entries_of, from_entries, values_of


@implements(F.linear, (Dense, Format, Dense))
def linear(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """x @ weight.T + bias for a sparse weight."""
    shape = weight._dense_shape
    if len(shape) != 2 or input.dtype != weight._values.dtype or input.shape[-1:] != shape[1:]:
        return NotImplemented  # torch's own error, from the dense path
    if input.dim() == 2:
        return product.linear(input, weight, bias)
    return product.linear(input.reshape(-1, shape[1]), weight, bias).view(*input.shape[:-1], shape[0])


@implements(F.linear, (Dense, Masked, Dense))
def linear_masked(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Tensor:
    """A masked weight is a dense one whose other values are zero."""
    return F.linear(input, values_of(weight) if weight.grad_format is None else weight.to_dense(), bias)


@implements(torch.matmul, (Format, Format))
def matmul(input: Tensor, other: Tensor) -> Any:
    """Product of a sparse matrix with a dense tensor, on either side; sparse x sparse is sparse."""
    if isinstance(input, SparseTensor) and isinstance(other, SparseTensor):
        return _sparse_sparse(input, other)
    if isinstance(input, SparseTensor):
        return _sparse_dense(input, other)
    if not isinstance(other, SparseTensor):
        return NotImplemented
    return _dense_sparse(input, other)


def _sparse_dense(a: SparseTensor, b: Tensor) -> Any:
    shape = a._dense_shape
    if a._values.dtype != b.dtype or a.grad_format is not None:
        return NotImplemented
    if len(shape) == 3 and b.dim() == 3:
        return _batched(a, b)
    if len(shape) != 2 or b.dim() not in (1, 2) or b.shape[0] != shape[1]:
        return NotImplemented
    return product.product(a, b) if b.dim() == 2 else product.product(a, b[:, None]).squeeze(1)


def _dense_sparse(a: Tensor, b: SparseTensor) -> Any:
    shape = b._dense_shape
    if b._values.dtype != a.dtype or b.grad_format is not None:
        return NotImplemented
    if len(shape) == 3 and a.dim() == 3:
        out = _batched(_swap_last(b), a.transpose(1, 2))
        return out if out is NotImplemented else out.transpose(1, 2)
    if len(shape) != 2 or a.dim() == 0 or a.shape[-1] != shape[0]:
        return NotImplemented
    out = product.product(b, a.reshape(-1, shape[0]).t(), transpose=True, tokens_first=True)
    return out.view(*a.shape[:-1], shape[1])


def _batched(a: SparseTensor, b: Tensor) -> Any:
    """A batch of sparse matrices is one matrix of blocks on the diagonal."""
    batch, rows, cols = a._dense_shape
    if b.shape[:2] != (batch, cols):
        return NotImplemented
    keys, values = entries_of(a)
    block, inside = keys // max(rows * cols, 1), keys % max(rows * cols, 1)
    row, col = block * rows + inside // max(cols, 1), block * cols + inside % max(cols, 1)
    diagonal = from_entries(row * (batch * cols) + col, values, (batch * rows, batch * cols), CSR())
    return product.product(diagonal, b.reshape(batch * cols, -1)).view(batch, rows, -1)  # type: ignore[arg-type]


def _swap_last(t: SparseTensor) -> SparseTensor:
    batch, rows, cols = t._dense_shape
    keys, values = entries_of(t)
    block, inside = keys // max(rows * cols, 1), keys % max(rows * cols, 1)
    swapped = block * (rows * cols) + (inside % max(cols, 1)) * rows + inside // max(cols, 1)
    return from_entries(swapped, values, (batch, cols, rows), t.format)  # type: ignore[return-value]


def _sparse_sparse(a: SparseTensor, b: SparseTensor) -> Any:
    """Row by row (Gustavson) without a loop: every entry of A meets the row of B that it names."""
    if len(a._dense_shape) != 2 or len(b._dense_shape) != 2 or a._dense_shape[1] != b._dense_shape[0]:
        return NotImplemented
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
    return from_entries(unique, summed, (rows, cols), a.format)


for _name in ("mm", "mv", "bmm", "__matmul__"):
    implements(_name, (Format, Format))(matmul)


@implements(torch.addmm, (Format, Format, Format))
def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return beta * input + alpha * (mat1 @ mat2)."""
    if isinstance(input, SparseTensor):
        return NotImplemented
    out = matmul(mat1, mat2)
    if out is NotImplemented or isinstance(out, SparseTensor):
        return NotImplemented
    scaled = out if alpha == 1 else alpha * out
    return scaled if beta == 0 else scaled + (input if beta == 1 else beta * input)


for _name in ("addmv", "baddbmm"):
    implements(_name, (Format, Format, Format))(addmm)


@implements(torch.dot, (Format, Format))
def dot(input: Tensor, tensor: Tensor) -> Any:
    """Sum of the products of two vectors."""
    if input.dim() != 1 or input.shape != tensor.shape or input.dtype != tensor.dtype:
        return NotImplemented
    return (input * tensor).sum()


@implements(torch.outer, (Format, Format))
def outer(input: Tensor, vec2: Tensor) -> Any:
    """Outer product of two sparse vectors: sparse."""
    if not (isinstance(input, SparseTensor) and isinstance(vec2, SparseTensor)) or input.dim() != 1 or vec2.dim() != 1:
        return NotImplemented
    (ka, va), (kb, vb) = entries_of(input), entries_of(vec2)
    keys = (ka[:, None] * vec2._dense_shape[0] + kb).reshape(-1)
    shape = (input._dense_shape[0], vec2._dense_shape[0])
    return from_entries(keys, (va[:, None] * vb).reshape(-1), shape, input.format)
