"""Norms, variances and standard deviations: dense results, computed from the stored entries."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import values_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.ops.reductions import Dims, Groups, reduced_dims, takes_extreme


def takes_vector_norm(
    x: SparseTensor, ord: Any = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> str | None:
    """Guard of norms of entries."""
    shape, values = x._dense_shape, x._values.dtype
    if not (isinstance(ord, (int, float)) and ord > 0):
        return "the order is not a positive number"
    if shape.numel() == 0 and math.isinf(ord):
        return "nothing has no largest value"
    if not (values.is_floating_point or values.is_complex):
        return "the values are no floats"
    every = len(reduced_dims(dim, len(shape))) == len(shape) and not keepdim
    if not every and (dtype is not None or values.is_complex):
        return "along dimensions there is no dtype, and no norm of complex numbers"
    return takes_extreme(x, dim if dim is not None else ()) if not every and math.isinf(ord) else None


@implements(torch.linalg.vector_norm, (Format,), when=takes_vector_norm)
def vector_norm(
    x: SparseTensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Norm of the vector of all values, or along dimensions; what isn't stored adds nothing."""
    every = len(reduced_dims(dim, x.dim())) == x.dim()
    if every and not keepdim:
        values = values_of(x)
        return torch.linalg.vector_norm(values, ord, dtype=dtype) if values.numel() else values.sum()
    if math.isinf(ord):
        return torch.amax(x.abs(), dim if dim is not None else (), keepdim)
    groups = Groups(x, dim)
    nothing = groups.values == 0  # powers and roots may have no slope at 0: torch's norm has 0 there, as here
    powers = groups.sum(torch.where(nothing, 0.0, torch.where(nothing, 1.0, groups.values.abs()) ** ord))
    zero = powers == 0
    return groups.shaped(torch.where(zero, 0.0, torch.where(zero, 1.0, powers) ** (1 / ord)), keepdim, x.dim())


def _takes_norm(
    input: SparseTensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> str | None:
    if p not in ("fro", None) and not isinstance(p, (int, float)):
        return "it is a norm of matrices that needs all values"
    if input._values.dtype.is_complex or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return "the values are complex, or dim is empty"
    return takes_vector_norm(input, 2.0 if p in ("fro", None) else float(p), dim, keepdim, dtype=dtype)


@implements(torch.norm, (Format,), when=_takes_norm)
def norm(input: SparseTensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return the norm, torch.norm's way."""
    return vector_norm(input, 2.0 if p in ("fro", None) else float(p), dim, keepdim, dtype=dtype)


def _takes_linalg_norm(
    A: SparseTensor, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None
) -> str | None:
    count = len(A._dense_shape) if dim is None else 1 if isinstance(dim, int) else len(dim)
    if ord is not None and not (ord == "fro" and count == 2) and (count != 1 or not isinstance(ord, (int, float))):
        return "it is a norm of matrices that needs all values"
    return takes_vector_norm(A, _order(ord), dim, keepdim, dtype=dtype)


def _order(ord: Any) -> float:
    return 2.0 if ord in (None, "fro") else float(ord)


@implements(torch.linalg.norm, (Format,), when=_takes_linalg_norm)
def linalg_norm(A: SparseTensor, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Norm of vectors, and of matrices by their entries."""
    return vector_norm(A, _order(ord), dim, keepdim, dtype=dtype)


def _takes_matrix_norm(
    A: SparseTensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> str | None:
    count = len(A._dense_shape)
    if ord != "fro":
        return "it is a norm of matrices that needs all values"
    if count < 2 or len(dim) != 2 or dim[0] % count == dim[1] % count:
        return "two dimensions are needed"
    return takes_vector_norm(A, 2.0, tuple(dim), keepdim, dtype=dtype)


@implements(torch.linalg.matrix_norm, (Format,), when=_takes_matrix_norm)
def matrix_norm(
    A: SparseTensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Frobenius norm of matrices."""
    return vector_norm(A, 2.0, tuple(dim), keepdim, dtype=dtype)


# -- variances


def _takes_spread(
    input: SparseTensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
) -> str | None:
    dim, freedom = _freedom(dim, unbiased, correction)
    if not input._values.dtype.is_floating_point:
        return "the values are no floats"
    if not isinstance(freedom, (int, float)):
        return "the correction is not a number"
    shape = input._dense_shape
    size = math.prod(shape[d] for d in reduced_dims(dim, len(shape)))
    return None if size > freedom else "there are no more values than the correction"


def _freedom(dim: Any, unbiased: Any, correction: Any) -> tuple[Any, Any]:
    """Return the dimensions, and how many degrees of freedom are lost; torch has three ways to say it."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    return dim, 1 if correction is None else correction


def _moments(input: SparseTensor, dim: Any, lost: float, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Variance and mean; two passes over the stored entries, and the others at once."""
    groups, ndim = Groups(input, dim, sparse=False), len(input._dense_shape)
    mean = groups.sum(groups.values) / groups.size
    squares = groups.sum((groups.values - mean[groups.group]) ** 2) + (groups.size - groups.stored()) * mean**2
    return groups.shaped(squares / (groups.size - lost), keepdim, ndim), groups.shaped(mean, keepdim, ndim)


def _sqrt(x: Tensor) -> Tensor:
    """Square root with torch.std's slope at 0, which is 0."""
    zero = x == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x).sqrt())


def _spread(root: bool, both: bool) -> Any:
    def run(
        input: SparseTensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        var, mean = _moments(input, *_freedom(dim, unbiased, correction), keepdim)
        var = _sqrt(var) if root else var
        return (var, mean) if both else var

    return run


for _name, _root, _both in (("var", 0, 0), ("std", 1, 0), ("var_mean", 0, 1), ("std_mean", 1, 1)):
    implements(_name, (Format,), when=_takes_spread)(_spread(bool(_root), bool(_both)))
