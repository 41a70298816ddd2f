"""The largest, the smallest, and values in order along a dimension, computed from the stored entries.

Values and indices are torch's, ties included: of equal values the first comes first. What a result is:

- ``max``, ``min``, ``argmax`` and ``argmin`` are like sums: ordinary vectors, and sparse where two or more dimensions
  are left (the index of a row without entries is 0, which is not stored).
- ``topk`` is ordinary: it has k values a row.
- ``sort`` and ``msort`` give sparse values. ``sort`` and ``argsort`` have an index for every position, zeros too, so
  their indices are ordinary; ``msort`` has none, and takes tensors of any size.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import from_entries
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.ops.fibres import Fibres
from gossamer.ops.pointwise import takes_pointwise
from gossamer.ops.reductions import reduced_format, stays_sparse, takes_extreme
from gossamer.ops.shape import dim_of


def takes_order(input: SparseTensor, dim: Any = -1) -> str | None:
    """Guard of what orders values along a dimension (None: all of them)."""
    if torch.compiler.is_compiling():
        return "a trace can't count entries"
    if input.structure.plain:
        return "every position is stored, and torch orders them faster"
    if not isinstance(dim, (int, type(None))) or isinstance(dim, bool) or not input._dense_shape:
        return "dim is not a number, or there is no dimension"
    return takes_extreme(input, () if dim is None else dim)


# -- the first of each fibre


def _best(input: SparseTensor, dim: int | None, keepdim: bool, largest: bool) -> tuple[Tensor, Tensor]:
    ndim = len(input._dense_shape)
    dim = None if dim is None else dim_of(dim, ndim)
    fibres = Fibres(input, dim, descending=largest, nan_first=True)
    if dim is not None and stays_sparse(input, (dim,)):
        return _sparse_best(input, fibres, dim, keepdim)
    values, indices = (fibres.laid_out(rows) for rows in fibres.first(1, fibres.every()))
    if dim is None:
        shape = (1,) * ndim if keepdim else ()
        return values.view(shape), indices.view(shape)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def _sparse_best(input: SparseTensor, fibres: Fibres, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """Return extremes and where they are, of the fibres that have entries: of all others both are 0."""
    number = torch.unique_consecutive(fibres.fibre)
    shape = tuple(size for d, size in enumerate(input._dense_shape) if d != dim)
    format = reduced_format(shape, number.numel())
    made = [from_entries(number, rows.view(-1), shape, format) for rows in fibres.first(1, number)]
    values, indices = [t.unsqueeze(dim) for t in made] if keepdim else made
    return values, indices


def _takes_max(input: Tensor, *args: Any, **kwargs: Any) -> str | None:
    if len(args) == 1 and isinstance(args[0], Tensor) and not kwargs:
        return takes_pointwise("maximum", (input, args[0]))
    if args or kwargs:
        return takes_order(input, args[0] if args else kwargs.get("dim"))  # type: ignore[arg-type]
    return takes_extreme(input)  # type: ignore[arg-type]


def _max(name: str, largest: bool) -> None:
    pairwise = torch.maximum if largest else torch.minimum
    every = torch.amax if largest else torch.amin
    pair = torch.return_types.max if largest else torch.return_types.min

    def run(input: Tensor, *args: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if args and isinstance(args[0], Tensor):
            return pairwise(input, args[0])
        if not args and dim is None:
            return every(input)
        dim, keepdim = (*args, dim, keepdim)[0], args[1] if len(args) > 1 else keepdim
        return pair(_best(input, dim, keepdim, largest))  # type: ignore[arg-type]

    run.__name__ = run.__qualname__ = name  # for gs.explain
    implements(name, (Format, Format), when=_takes_max)(run)


def _argmax(name: str, largest: bool) -> None:
    def guard(input: SparseTensor, dim: Any = None, keepdim: bool = False) -> str | None:
        return takes_order(input, dim)

    def run(input: SparseTensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        return _best(input.detach(), dim, keepdim, largest)[1]  # type: ignore[arg-type]

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=guard)(run)


for _largest in (True, False):
    _max("max" if _largest else "min", _largest)
    _argmax("argmax" if _largest else "argmin", _largest)


def _takes_topk(input: SparseTensor, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> str | None:
    return takes_order(input, dim) if isinstance(k, int) else "k is not a number"


@implements(torch.topk, (Format,), when=_takes_topk)
def topk(input: SparseTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Return the k largest or smallest values along a dimension, and where they are."""
    fibres = Fibres(input, dim_of(dim, len(input._dense_shape)), descending=largest)
    if not 0 <= k <= fibres.size:
        raise RuntimeError(f"selected index k out of range: k is {k}, and the dimension has {fibres.size} values")
    values, indices = fibres.first(k, fibres.every())
    return torch.return_types.topk((fibres.laid_out(values), fibres.laid_out(indices)))


# -- whole fibres


def _takes_sort(input: SparseTensor, dim: Any = -1, *args: Any, **kwargs: Any) -> str | None:
    return takes_order(input, dim)


@implements(torch.sort, (Format,), when=_takes_sort)
def sort(input: SparseTensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Any:
    """Sort along a dimension: sparse values, and for every position the index that it comes from."""
    fibres = Fibres(input, dim_of(dim, len(input._dense_shape)), descending)
    return torch.return_types.sort((fibres.sorted(input), _indices(fibres)))


@implements(torch.argsort, (Format,), when=_takes_sort)
def argsort(input: SparseTensor, dim: int = -1, descending: bool = False, *, stable: bool = False) -> Tensor:
    """Return for every position the index that sorting would bring there."""
    return _indices(Fibres(input.detach(), dim_of(dim, len(input._dense_shape)), descending))  # type: ignore[arg-type]


@implements(torch.msort, (Format,), when=lambda input: takes_order(input, 0))
def msort(input: SparseTensor) -> Tensor:
    """Sort along the first dimension; only the values, which stay sparse."""
    return Fibres(input, 0, descending=False).sorted(input)


def _indices(fibres: Fibres) -> Tensor:
    count = math.prod(fibres.shape)
    if count > _MANY:
        raise RuntimeError(
            f"sort and argsort have an index for every position of shape {fibres.shape}, {count * 8 / 2**30:,.0f} GiB: "
            f"torch.msort(t) sorts the first dimension and returns sparse values only, torch.topk(t, k) the first k"
        )
    return fibres.laid_out(fibres.first(fibres.size, fibres.every())[1])


_MANY = 1 << 32  # indices of 32 GiB
