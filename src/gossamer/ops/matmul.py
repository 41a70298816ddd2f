"""matmul and its family: products with a sparse matrix on either side; sparse times sparse is sparse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, entries_of, from_entries, values_of
from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import CSR, Dense, Format, Masked, Structure
from gossamer.formats.values import mask_padding
from gossamer.kernels.product import matrix_of_tokens
from gossamer.ops.product import describe, multiply

_SHAPES = "the shapes don't fit"
_TYPES = "the operands have different types"


def takes_matmul(input: Tensor, other: Tensor) -> str | None:
    """Guard of all products: what is refused here is for torch, and often its error."""
    left, right = shape_of(input), shape_of(other)
    if dtype_of(input) is not dtype_of(other):
        return _TYPES
    if not left or not right:
        return "an operand has no dimension"
    if len(left) == len(right) == 3:
        return None if right[:2] == (left[0], left[2]) else _SHAPES
    if len(left) > 2 and isinstance(other, SparseTensor) and isinstance(input, SparseTensor):
        return "batches of sparse matrices are multiplied pair by pair only"
    if len(right) > 2:
        return "a batch of matrices on the right is multiplied by another batch only"
    return None if left[-1] == right[0] else _SHAPES


# -- one operand is sparse


def _describe(input: Tensor, other: Tensor) -> str:
    if isinstance(input, SparseTensor):
        return describe(input) if len(shape_of(input)) == 2 else ""
    return describe(other, transpose=True) if len(shape_of(other)) == 2 else ""  # type: ignore[arg-type]


@implements(torch.matmul, (Format, Dense), when=takes_matmul, detail=_describe)
def sparse_dense(input: SparseTensor, other: Tensor) -> Tensor:
    """Product of a sparse matrix with a dense vector or matrix, or of two batches of matrices."""
    shape, b = input._dense_shape, other
    if len(shape) == 3 and b.dim() == 3:
        out = sparse_dense(_on_diagonal(input), b.flatten(0, 1))
        return out.view(shape[0], shape[1], b.shape[2])
    tokens = b.t() if b.dim() == 2 else b.unsqueeze(0)
    # a column of the matrix is a token: feature-major tokens give a result in torch's order
    out = multiply(tokens, _as_matrix(input), feature_major=True).t().contiguous()
    return out if len(shape) == 2 and b.dim() == 2 else out.view((*shape[:-1], *b.shape[1:]))


@implements(torch.matmul, (Dense, Format), when=takes_matmul, detail=_describe)
def dense_sparse(input: Tensor, other: SparseTensor) -> Tensor:
    """Product of a dense tensor with a sparse matrix or vector, or of two batches of matrices."""
    shape = other._dense_shape
    if len(shape) == 3:
        return sparse_dense(_swap_last(other), input.transpose(1, 2)).transpose(1, 2)
    if len(shape) == 1:  # a matrix of one row
        return multiply(input, other).view(input.shape[:-1])
    return multiply(input, other, transpose=True)


def _as_matrix(a: SparseTensor) -> SparseTensor:
    """All but the last dimension as one."""
    return a if len(a._dense_shape) == 2 else matrix_of_tokens(a)  # type: ignore[return-value]


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


# -- both are


@implements(torch.matmul, (Format, Format), when=takes_matmul)
def sparse_sparse(input: SparseTensor, other: SparseTensor) -> Tensor:
    """Vectors are matrices of one row or column; batches are one matrix of blocks on the diagonal."""
    left, right = input._dense_shape, other._dense_shape
    if len(left) == 3:
        out = _gustavson(_on_diagonal(input), other.flatten(0, 1))  # type: ignore[arg-type]
        return out.reshape((*left[:-1], right[2]))
    a = input if len(left) == 2 else input.unsqueeze(0)
    b = other if len(right) == 2 else other.unsqueeze(1)
    return _gustavson(a, b).reshape((*left[:-1], *right[1:]))  # type: ignore[arg-type]


def _gustavson(a: SparseTensor, b: SparseTensor) -> Tensor:
    """Row by row without a loop: every entry of A meets the row of B that it names."""
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


def _takes_masked(input: SparseTensor, other: SparseTensor) -> str | None:
    if len(input._dense_shape) != 2 or len(other._dense_shape) != 2:
        return "an operand is no matrix"
    return takes_matmul(input, other)


@implements(torch.matmul, (Masked, Masked), when=_takes_masked)
def masked_masked(input: SparseTensor, other: SparseTensor) -> Tensor:
    """Two matrices that are stored dense: their product, and that of their masks."""
    (left,), (right,) = input.structure.arrays.values(), other.structure.arrays.values()
    meet = left.view(input._dense_shape).float() @ right.view(other._dense_shape).float()
    product = values_of(input) @ values_of(other)
    structure = Structure(Masked(), product.shape, {"mask1": (meet > 0).view(-1)}, product.device)
    return build(mask_padding(product, structure), structure)


# -- the other names


def exactly(left: int, right: int) -> Any:
    """Return the guard of matmul for operands of just these numbers of dimensions."""

    def guard(input: Tensor, mat2: Tensor, *reduce: Any) -> str | None:
        if reduce:
            return "torch.sparse.mm with another reduction than a sum"
        if len(shape_of(input)) != left or len(shape_of(mat2)) != right:
            return "the operands have other numbers of dimensions"
        return takes_matmul(input, mat2)

    return guard


implements("mm", (Masked, Masked), when=_takes_masked)(masked_masked)
for _name, _dims in {"mm": (2, 2), "mv": (2, 1), "bmm": (3, 3)}.items():
    for _formats, _function in {
        (Format, Dense): sparse_dense,
        (Dense, Format): dense_sparse,
        (Format, Format): sparse_sparse,
    }.items():
        implements(_name, _formats, when=exactly(*_dims), detail=_describe)(_function)


def _takes_added(left: int, right: int) -> Any:
    takes = exactly(left, right)

    def guard(input: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> str | None:
        if dtype_of(input) is not dtype_of(a):
            return _TYPES
        refused = takes(a, b)
        if refused is not None:
            return refused
        shape = (*shape_of(a)[:-1], *(shape_of(b)[-1:] if right > 1 else ()))
        given = shape_of(input)[-len(shape) :]
        if any(size not in (1, want) for size, want in zip(given[::-1], shape[::-1], strict=False)):
            return "the first operand doesn't broadcast to the product"
        return None

    return guard


def added(input: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return beta * input + alpha * (a @ b)."""
    out = torch.matmul(a, b)
    scaled = out if alpha == 1 else alpha * out
    return scaled if beta == 0 else scaled + (input if beta == 1 else beta * input)


for _name, _dims in {"addmm": (2, 2), "addmv": (2, 1), "baddbmm": (3, 3)}.items():
    implements(_name, (Format, Format, Format), when=_takes_added(*_dims))(added)


def _takes_bias(input: Tensor, mat1: Tensor, mat2: SparseTensor, *, beta: Any = 1, alpha: Any = 1) -> str | None:
    if not beta == alpha == 1 or shape_of(input) != shape_of(mat2)[1:]:
        return "the first operand is no bias"
    return _takes_added(2, 2)(input, mat1, mat2)


def _describe_bias(input: Tensor, mat1: Tensor, mat2: SparseTensor, **options: Any) -> str:
    return describe(mat2, transpose=True)


@implements(torch.addmm, (Dense, Dense, Format), when=_takes_bias, detail=_describe_bias)
def addmm_bias(input: Tensor, mat1: Tensor, mat2: SparseTensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """Return input + mat1 @ mat2 for a weight with its inputs first (Conv1D of transformers)."""
    return multiply(mat1, mat2, input, transpose=True)


# -- products of vectors


def _takes_dot(input: Tensor, tensor: Tensor) -> str | None:
    if len(shape_of(input)) != 1 or shape_of(input) != shape_of(tensor):
        return "the operands are no vectors of one length"
    return None if dtype_of(input) is dtype_of(tensor) else _TYPES


@implements(torch.dot, (Format, Format), when=_takes_dot)
def dot(input: Tensor, tensor: Tensor) -> Any:
    """Sum of the products of two vectors."""
    return (input * tensor).sum()


def _takes_vdot(input: Tensor, tensor: Tensor) -> str | None:
    return "complex vectors are conjugated first" if dtype_of(input).is_complex else _takes_dot(input, tensor)


implements(torch.vdot, (Format, Format), when=_takes_vdot)(dot)


def _takes_inner(input: Tensor, other: Tensor) -> str | None:
    left, right = shape_of(input), shape_of(other)
    if not left or len(right) not in (1, 2) or left[-1] != right[-1] or (len(right) == 1 and len(left) != 1):
        return _SHAPES
    return None if dtype_of(input) is dtype_of(other) else _TYPES


@implements(torch.inner, (Format, Format), when=_takes_inner)
def inner(input: Tensor, other: Tensor) -> Any:
    """Products along the last dimension of both."""
    if len(shape_of(other)) == 1:
        return dot(input, other)
    return torch.nn.functional.linear(input, other)


def _takes_vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> str | None:
    if dtype_of(x).is_complex:
        return "complex vectors are conjugated first"
    if shape_of(x) != shape_of(y) or not shape_of(x):
        return "the operands have different shapes"
    return None if dtype_of(x) is dtype_of(y) else _TYPES


@implements(torch.linalg.vecdot, (Format, Format), when=_takes_vecdot)
def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Any:
    """Sum of the products along one dimension."""
    return (x * y).sum(dim)


def _takes_outer(input: Tensor, vec2: Tensor) -> str | None:
    if not (isinstance(input, SparseTensor) and isinstance(vec2, SparseTensor)):
        return "one of the vectors is dense"
    return None if len(shape_of(input)) == len(shape_of(vec2)) == 1 else "the operands are no vectors"


@implements(torch.outer, (Format, Format), when=_takes_outer)
def outer(input: SparseTensor, vec2: SparseTensor) -> Any:
    """Outer product of two sparse vectors: sparse."""
    (ka, va), (kb, vb) = entries_of(input), entries_of(vec2)
    keys = (ka[:, None] * vec2._dense_shape[0] + kb).reshape(-1)
    shape = (input._dense_shape[0], vec2._dense_shape[0])
    return from_entries(keys, (va[:, None] * vb).reshape(-1), shape, input.format.general())
