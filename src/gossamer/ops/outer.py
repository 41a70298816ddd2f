"""Products of whole tensors: ``torch.tensordot`` and ``torch.kron``. The result is sparse if both operands are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import from_entries
from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.keys import ravel
from gossamer.ops.shape import coords_of


def _pairs(a: Any, b: Any, dims: Any) -> tuple[list[int], list[int]] | None:
    """Return the dimensions of both operands that are summed over; None if they don't fit."""
    left, right = shape_of(a), shape_of(b)
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(len(left), len(right)):
            return None
        dims = list(range(len(left) - dims, len(left))), list(range(dims))
    first, second = ([d] if isinstance(d, int) else list(d) for d in dims)
    if len(first) != len(second) or not all(-len(left) <= d < len(left) for d in first):
        return None
    if not all(-len(right) <= d < len(right) for d in second):
        return None
    first, second = [d % len(left) for d in first], [d % len(right) for d in second]
    once = len(set(first)) == len(first) and len(set(second)) == len(second)
    fits = once and all(left[i] == right[j] for i, j in zip(first, second, strict=True))
    return (first, second) if fits else None


def _takes_tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> str | None:
    if dtype_of(a) is not dtype_of(b):
        return "the operands have different types"
    return None if _pairs(a, b, dims) is not None else "the dimensions don't fit"


@implements(torch.tensordot, (Format, Format), when=_takes_tensordot)
def tensordot(a: Tensor, b: Tensor, dims: Any = 2, out: None = None) -> Any:
    """Return the sum over pairs of dimensions, as one product of matrices."""
    found = _pairs(a, b, dims)
    assert found is not None
    first, second = found
    left, right = [d for d in range(a.dim()) if d not in first], [d for d in range(b.dim()) if d not in second]
    inner = math.prod(a.shape[d] for d in first)
    rows, cols = [a.shape[d] for d in left], [b.shape[d] for d in right]
    x = a.permute(*left, *first).reshape(math.prod(rows), inner)
    y = b.permute(*second, *right).reshape(inner, math.prod(cols))
    return torch.matmul(x, y).reshape((*rows, *cols))


def _takes_kron(input: Any, other: Any, out: Any = None) -> str | None:
    if not isinstance(input, SparseTensor) or not isinstance(other, SparseTensor):
        return "one operand is dense, and so is the result"
    return None if input._dense_shape and other._dense_shape else "an operand has no dimension"


@implements(torch.kron, (Format, Format), when=_takes_kron)
def kron(input: SparseTensor, other: SparseTensor, out: None = None) -> Any:
    """Return every product of an entry of one with an entry of the other, in its block."""
    ndim = max(len(input._dense_shape), len(other._dense_shape))
    (left, mine), (right, theirs) = coords_of(input), coords_of(other)
    sizes = [(1,) * (ndim - len(t._dense_shape)) + tuple(t._dense_shape) for t in (input, other)]
    zeros = [torch.zeros_like(c[0]) for c in (left, right)]
    left = [zeros[0]] * (ndim - len(left)) + list(left)
    right = [zeros[1]] * (ndim - len(right)) + list(right)
    coords = [(a[:, None] * size + b).reshape(-1) for a, b, size in zip(left, right, sizes[1], strict=True)]
    shape = [a * b for a, b in zip(*sizes, strict=True)]
    return from_entries(ravel(coords, shape), (mine[:, None] * theirs).reshape(-1), shape, input.format.general())
