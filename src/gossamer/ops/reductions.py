"""Sums, means, extremes and norms: dense results, computed from the stored entries."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, build, entries_of, values_of
from gossamer.formats import Format
from gossamer.ops.bridge import task

Dims = int | Sequence[int] | None


class Groups:
    """The stored entries grouped by where a reduction over some dimensions puts them."""

    def __init__(self, tensor: SparseTensor, dim: Dims) -> None:
        shape = tensor._dense_shape
        self.dims = reduced_dims(dim, len(shape))
        kept = [d for d in range(len(shape)) if d not in self.dims]
        self.shape = tuple(shape[d] for d in kept)
        self.size = math.prod(shape[d] for d in self.dims)
        keys, self.values = entries_of(tensor)
        self.group = keys.new_zeros(keys.numel())
        stride = 1
        for d in reversed(kept):
            below = math.prod(shape[d + 1 :])
            self.group = self.group + (keys // max(below, 1)) % max(shape[d], 1) * stride
            stride *= shape[d]
        self.count = stride if kept else 1

    def sum(self, values: Tensor) -> Tensor:
        """Sum within each group, flat."""
        return values.new_zeros(self.count).index_add(0, self.group, values)

    def stored(self) -> Tensor:
        """How many entries of each group are stored."""
        return torch.bincount(self.group, minlength=self.count)

    def extreme(self, which: str) -> Tensor:
        """Return the largest ("amax") or smallest ("amin") of each group; places not stored count as zero."""
        worst = -math.inf if which == "amax" else math.inf
        if not self.values.is_floating_point():
            info = torch.iinfo(self.values.dtype)
            worst = info.min if which == "amax" else info.max
        values, stored = self.values.detach(), self.stored()
        best = values.new_full((self.count,), worst).scatter_reduce(0, self.group, values, which)
        best = torch.where(stored < self.size, best.clamp(min=0) if which == "amax" else best.clamp(max=0), best)
        if not (torch.is_grad_enabled() and self.values.requires_grad):
            return best
        tied = (values == best[self.group]).to(values.dtype)
        ties = self.sum(tied) + torch.where(best == 0, self.size - stored, 0)
        return _Extreme.apply(self.values, best, tied / ties[self.group], self.group)

    def shaped(self, out: Tensor, keepdim: bool, ndim: int) -> Tensor:
        """Give a flat result its shape."""
        if not keepdim:
            return out.view(self.shape)
        sizes = iter(self.shape)
        return out.view([1 if d in self.dims else next(sizes) for d in range(ndim)])


class _Extreme(torch.autograd.Function):
    """The extremes, whose gradient goes in equal shares to all that reach them, stored or not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, best: Tensor, share: Tensor, group: Tensor) -> Tensor:
        ctx.save_for_backward(share, group)
        return best.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        share, group = ctx.saved_tensors
        return grad[group] * share, None, None, None


def reduced_dims(dim: Dims, ndim: int) -> tuple[int, ...]:
    """Return the dimensions to reduce, counted from 0; None and () mean all."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(ndim))
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    for d in dims:
        if ndim > 64:
            raise RuntimeError("only tensors with up to 64 dims are supported")
        if not -max(ndim, 1) <= d < max(ndim, 1):
            raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {d})")
    if ndim == 0:
        return ()
    wrapped = tuple(d % ndim for d in dims)
    if len(set(wrapped)) != len(wrapped):
        raise RuntimeError(f"dim {wrapped[0]} appears multiple times in the list of dims")
    return wrapped


@implements(torch.sum, (Format,))
def sum(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Sum over all or some dimensions."""
    if not isinstance(dim, (int, list, tuple, type(None))):
        return NotImplemented
    if len(reduced_dims(dim, input.dim())) == input.dim() and not keepdim:
        return values_of(input).sum(dtype=dtype)
    compiled = task("sum", (input,), reduced_dims(dim, input.dim()), keepdim) if dtype is None else None
    if compiled is not None:
        return compiled.run()
    groups = Groups(input, dim)
    values = groups.values if dtype is None else groups.values.to(dtype)
    if not values.is_floating_point() and not values.is_complex() and dtype is None:
        values = values.long()
    return groups.shaped(groups.sum(values), keepdim, input.dim())


@implements(torch.mean, (Format,))
def mean(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Mean over all or some dimensions; places not stored count as zero."""
    if not (input._values.dtype if dtype is None else dtype).is_floating_point:
        return NotImplemented
    total = sum(input, dim, keepdim, dtype=dtype)
    if total is NotImplemented:
        return NotImplemented
    return total / math.prod(input._dense_shape[d] for d in reduced_dims(dim, input.dim()))


def _extreme(which: str) -> Any:
    def run(input: SparseTensor, dim: Dims = (), keepdim: bool = False) -> Any:
        compiled = task(which, (input,), reduced_dims(dim, input.dim()), keepdim)
        if compiled is not None:
            return compiled.run()
        groups = Groups(input, dim)
        if groups.size == 0 or input._values.dtype == torch.bool or input.is_complex():
            return NotImplemented
        return groups.shaped(groups.extreme(which), keepdim, input.dim())

    return run


amax = implements(torch.amax, (Format,))(_extreme("amax"))
amin = implements(torch.amin, (Format,))(_extreme("amin"))


@implements(torch.max, (Format, Format))
def max_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the largest of all values, or of two tensors place by place."""
    if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
        return torch.maximum(input, args[0])
    return NotImplemented if args or kwargs else amax(input)


@implements(torch.min, (Format, Format))
def min_(input: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Return the smallest of all values, or of two tensors place by place."""
    if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
        return torch.minimum(input, args[0])
    return NotImplemented if args or kwargs else amin(input)


@implements(torch.aminmax, (Format,))
def aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest and the largest of all values, or along a dimension."""
    low, high = amin(input, () if dim is None else dim, keepdim), amax(input, () if dim is None else dim, keepdim)
    return NotImplemented if low is NotImplemented else torch.return_types.aminmax((low, high))


def _counted(enough: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """Any and all: how many values of each group are not zero?"""

    def run(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
        if input._values.dtype == torch.uint8 or (isinstance(dim, (tuple, list)) and not dim):
            return NotImplemented
        groups = Groups(input, dim)
        found = groups.sum((groups.values != 0).long())
        return groups.shaped(enough(found, groups.size), keepdim, input.dim())

    return run


any_ = implements(torch.any, (Format,))(_counted(lambda found, size: found > 0))
all_ = implements(torch.all, (Format,))(_counted(lambda found, size: found == size))


@implements(torch.prod, (Format,))
def prod(
    input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Product of all values or along a dimension: zero as soon as one is not stored."""
    if not input.is_floating_point() or not isinstance(dim, (int, type(None))):
        return NotImplemented
    groups = Groups(input, dim)
    values = groups.values if dtype is None else groups.values.to(dtype)
    full = values.new_ones(groups.count).scatter_reduce(0, groups.group, values, "prod")
    return groups.shaped(torch.where(groups.stored() < groups.size, 0, full), keepdim, input.dim())


@implements(torch.count_nonzero, (Format,))
def count_nonzero(input: SparseTensor, dim: Dims = None) -> Any:
    """Count values that are not zero."""
    if dim is None:
        return torch.count_nonzero(values_of(input))
    groups = Groups(input, dim)
    return groups.shaped(groups.sum((groups.values != 0).long()), False, input.dim())


@implements(torch.linalg.vector_norm, (Format,))
def vector_norm(
    x: SparseTensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Norm of the vector of all values, or along dimensions; what isn't stored adds nothing."""
    if not (isinstance(ord, (int, float)) and ord > 0) or (x.numel() == 0 and math.isinf(ord)):
        return NotImplemented
    every = len(reduced_dims(dim, x.dim())) == x.dim()
    if every and not keepdim:
        values = values_of(x)
        return torch.linalg.vector_norm(values, ord, dtype=dtype) if values.numel() else values.sum()
    if dtype is not None or x.is_complex():
        return NotImplemented
    if math.isinf(ord):
        return amax(x.abs(), dim if dim is not None else (), keepdim)
    groups = Groups(x, dim)
    nothing = groups.values == 0  # powers and roots may have no slope at 0: torch's norm has 0 there, as here
    powers = groups.sum(torch.where(nothing, 0.0, torch.where(nothing, 1.0, groups.values.abs()) ** ord))
    zero = powers == 0
    return groups.shaped(torch.where(zero, 0.0, torch.where(zero, 1.0, powers) ** (1 / ord)), keepdim, x.dim())


@implements(torch.norm, (Format,))
def norm(input: SparseTensor, p: Any = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None) -> Any:
    """Return the norm, torch.norm's way."""
    if p in ("fro", None):
        p = 2
    if not isinstance(p, (int, float)) or input.is_complex() or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return NotImplemented
    return vector_norm(input, float(p), dim, keepdim, dtype=dtype)


@implements(torch.linalg.norm, (Format,))
def linalg_norm(A: SparseTensor, ord: Any = None, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    """Norm of vectors, and of matrices by their entries."""
    count = A.dim() if dim is None else 1 if isinstance(dim, int) else len(dim)
    if ord is None or (ord == "fro" and count == 2):
        ord = 2.0
    elif count != 1 or not isinstance(ord, (int, float)):
        return NotImplemented
    return vector_norm(A, float(ord), dim, keepdim, dtype=dtype)


@implements(torch.linalg.matrix_norm, (Format,))
def matrix_norm(
    A: SparseTensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Any:
    """Frobenius norm of matrices."""
    if ord != "fro" or A.dim() < 2 or len(dim) != 2 or dim[0] % A.dim() == dim[1] % A.dim():
        return NotImplemented
    return vector_norm(A, 2.0, tuple(dim), keepdim, dtype=dtype)


@implements(torch.nansum, (Format,))
def nansum(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Sum, with NaN as zero."""
    if not input.is_floating_point():
        return NotImplemented
    values = values_of(input)
    return sum(build(torch.where(values.isnan(), 0, values), input.structure), dim, keepdim, dtype=dtype)


def _moments(
    input: SparseTensor, dim: Any, unbiased: Any, correction: Any, keepdim: bool
) -> tuple[Tensor, Tensor] | None:
    """Variance and mean; two passes over the stored entries, and the others at once."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if unbiased is not None:
        correction = int(unbiased)
    if not input.is_floating_point() or (correction is not None and not isinstance(correction, (int, float))):
        return None
    groups = Groups(input, dim)
    freedom = groups.size - (1 if correction is None else correction)
    if freedom <= 0:
        return None
    mean = groups.sum(groups.values) / groups.size
    squares = groups.sum((groups.values - mean[groups.group]) ** 2) + (groups.size - groups.stored()) * mean**2
    return groups.shaped(squares / freedom, keepdim, input.dim()), groups.shaped(mean, keepdim, input.dim())


def _sqrt(x: Tensor) -> Tensor:
    """Square root with torch.std's slope at 0, which is 0."""
    zero = x == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, x).sqrt())


def _spread(root: bool, both: bool) -> Any:
    def run(
        input: SparseTensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        found = _moments(input, dim, unbiased, correction, keepdim)
        if found is None:
            return NotImplemented
        var, mean = found
        var = _sqrt(var) if root else var
        return (var, mean) if both else var

    return run


for _name, _root, _both in (("var", 0, 0), ("std", 1, 0), ("var_mean", 0, 1), ("std_mean", 1, 1)):
    implements(_name, (Format,))(_spread(bool(_root), bool(_both)))
