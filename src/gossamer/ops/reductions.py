"""Sums, means and extremes, computed from the stored entries.

Results of fewer than two dimensions are ordinary tensors. Others are sparse: a sum over one of three dimensions has
entries where there is something to sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, entries_of, from_entries, values_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import CSF, CSR, DCSR, Format

Dims = int | tuple[int, ...] | list[int] | None


class Groups:
    """The stored entries grouped by where a reduction over some dimensions puts them."""

    def __init__(self, tensor: SparseTensor, dim: Dims, *, sparse: bool = True) -> None:
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
        self.keys: Tensor | None = None  # of a sparse result: the groups that have entries
        if sparse and stays_sparse(tensor, self.dims):
            self.keys, self.group = torch.unique(self.group, return_inverse=True)
            self.count = self.keys.numel()

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
        if self.keys is not None:
            made = from_entries(self.keys, out, self.shape, reduced_format(self.shape, self.count))
            for d in sorted(self.dims) if keepdim else ():
                made = made.unsqueeze(d)
            return made
        if not keepdim:
            return out.view(self.shape)
        sizes = iter(self.shape)
        return out.view([1 if d in self.dims else next(sizes) for d in range(ndim)])


def stays_sparse(tensor: SparseTensor, dims: tuple[int, ...]) -> bool:
    """Is a reduction over these dimensions sparse? (If two dimensions are left; a trace can't count its entries.)"""
    return len(tensor._dense_shape) - len(dims) > 1 and not tensor.structure.plain and not torch.compiler.is_compiling()


def reduced_format(shape: tuple[int, ...], entries: int) -> Format:
    """Return the format of a reduction: CSR and CSF, and DCSR for far more rows than entries.

    Examples
    --------
    >>> reduced_format((3, 4), 5), reduced_format((1 << 30, 4), 5), reduced_format((3, 4, 5), 5)
    (CSR(), DCSR(), CSF())
    """
    if len(shape) != 2:
        return CSF()
    return CSR() if shape[0] <= _FEW_ROWS + 16 * entries else DCSR()


_FEW_ROWS = 1 << 20


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


def takes_sum(input: SparseTensor, dim: Dims = None, *args: Any, **kwargs: Any) -> str | None:
    """Guard of sums."""
    known = isinstance(dim, (int, list, tuple, type(None)))
    return None if known else "dim is neither a number nor a list of numbers"


@implements(torch.sum, (Format,), when=takes_sum)
def sum(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Sum over all or some dimensions."""
    if len(reduced_dims(dim, input.dim())) == input.dim() and not keepdim:
        return values_of(input).sum(dtype=dtype)
    groups = Groups(input, dim)
    values = groups.values if dtype is None else groups.values.to(dtype)
    if not values.is_floating_point() and not values.is_complex() and dtype is None:
        values = values.long()
    return groups.shaped(groups.sum(values), keepdim, input.dim())


def _takes_mean(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> str | None:
    if not (input._values.dtype if dtype is None else dtype).is_floating_point:
        return "the values are no floats"
    return takes_sum(input, dim)


@implements(torch.mean, (Format,), when=_takes_mean)
def mean(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Mean over all or some dimensions; places not stored count as zero."""
    total = torch.sum(input, dim, keepdim, dtype=dtype)
    return total / math.prod(input._dense_shape[d] for d in reduced_dims(dim, input.dim()))


def takes_extreme(input: SparseTensor, dim: Dims = (), *args: Any, **kwargs: Any) -> str | None:
    """Guard of the largest and the smallest."""
    dtype, shape = input._values.dtype, input._dense_shape
    if dtype == torch.bool or dtype.is_complex:
        return "bools and complex numbers have no order here"
    if math.prod(shape[d] for d in reduced_dims(dim, len(shape))) == 0:
        return "nothing has no extreme"
    return None


def _extreme(which: str) -> Any:
    def run(input: SparseTensor, dim: Dims = (), keepdim: bool = False) -> Any:
        groups = Groups(input, dim)
        return groups.shaped(groups.extreme(which), keepdim, len(input._dense_shape))

    run.__name__ = run.__qualname__ = which  # for gs.explain
    return run


amax = implements(torch.amax, (Format,), when=takes_extreme)(_extreme("amax"))
amin = implements(torch.amin, (Format,), when=takes_extreme)(_extreme("amin"))


def _takes_aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> str | None:
    return takes_extreme(input, () if dim is None else dim)


@implements(torch.aminmax, (Format,), when=_takes_aminmax)
def aminmax(input: SparseTensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the smallest and the largest of all values, or along a dimension."""
    dims = () if dim is None else dim
    return torch.return_types.aminmax((amin(input, dims, keepdim), amax(input, dims, keepdim)))


def _takes_counted(input: SparseTensor, dim: Dims = None, *args: Any, **kwargs: Any) -> str | None:
    if input._values.dtype == torch.uint8:
        return "torch gives uint8 for uint8"
    return "dim is empty" if isinstance(dim, (tuple, list)) and not dim else None


def _counted(enough: Callable[[Tensor, int], Tensor]) -> Callable[..., Any]:
    """Any and all: how many values of each group are not zero?"""

    def run(input: SparseTensor, dim: Dims = None, keepdim: bool = False) -> Any:
        groups = Groups(input, dim)
        found = groups.sum((groups.values != 0).long())
        return groups.shaped(enough(found, groups.size), keepdim, input.dim())

    return run


any_ = implements(torch.any, (Format,), when=_takes_counted)(_counted(lambda found, size: found > 0))
all_ = implements(torch.all, (Format,), when=_takes_counted)(_counted(lambda found, size: found == size))


def _takes_prod(input: SparseTensor, dim: Any = None, *args: Any, **kwargs: Any) -> str | None:
    if not input._values.dtype.is_floating_point:
        return "the values are no floats"
    return None if isinstance(dim, (int, type(None))) else "dim is not a number"


@implements(torch.prod, (Format,), when=_takes_prod)
def prod(
    input: SparseTensor, dim: int | None = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    """Product of all values or along a dimension: zero as soon as one is not stored."""
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


def _takes_nansum(input: SparseTensor, dim: Dims = None, *args: Any, **kwargs: Any) -> str | None:
    return takes_sum(input, dim) if input._values.dtype.is_floating_point else "the values are no floats"


@implements(torch.nansum, (Format,), when=_takes_nansum)
def nansum(input: SparseTensor, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    """Sum, with NaN as zero."""
    values = values_of(input)
    return sum(build(torch.where(values.isnan(), 0, values), input.structure), dim, keepdim, dtype=dtype)
