"""Indexing and cutting: some of the entries, under other numbers. The result stays sparse."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import from_entries
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
from gossamer.formats.keys import ravel
from gossamer.ops.shape import coords_of, dim_of
from gossamer.ops.stacked import is_stack, matrix_of

_NO_DIM = "there is no dimension"
_RANGE = "an index is out of range"
_INTEGERS = (torch.int64, torch.int32)


# -- t[...]


def takes_getitem(input: SparseTensor, index: Any) -> str | None:
    """Guard of t[...]."""
    index = _number(index)
    if isinstance(index, (list, Tensor)):
        return _takes_rows(input, index)
    items, shape = list(index) if isinstance(index, tuple) else [index], input._dense_shape
    if any(isinstance(i, bool) or not isinstance(i, (int, slice, type(None), type(...))) for i in items):
        return "an index is neither a number, nor a slice, None or ..."
    named = [i for i in items if i is not None and i is not Ellipsis]
    if len(named) > len(shape) or items.count(Ellipsis) > 1:
        return "there are too many indices"
    for item, size in zip(every_index(items, len(shape)), shape, strict=True):
        if isinstance(item, int) and not -size <= item < size:
            return _RANGE
        if isinstance(item, slice) and item.step is not None and item.step < 1:
            return "a slice has no positive step"
    return None


def _number(index: Any) -> Any:
    """Return an index that is a tensor of one integer, without dimensions, as that integer."""
    single = isinstance(index, Tensor) and not isinstance(index, SparseTensor) and index.dim() == 0
    return int(index) if single and index.dtype in _INTEGERS else index


def _takes_rows(input: SparseTensor, index: Any) -> str | None:
    index = torch.as_tensor(index) if isinstance(index, list) else index
    if isinstance(index, SparseTensor) or not input._dense_shape:
        return "the index is sparse, or there is no dimension"
    if index.dtype == torch.bool:
        return None if index.shape == input._dense_shape[:1] else "a mask of more than rows selects single values"
    return None if index.dim() == 1 and index.dtype in _INTEGERS else "the index is no vector of integers"


def every_index(items: list[Any], ndim: int) -> list[Any]:
    """Return an index for each dimension, with ``...`` written out and None left out."""
    return [item for item in written_out(items, ndim) if item is not None]


def written_out(items: list[Any], ndim: int) -> list[Any]:
    """Return the items of an index with ``...`` written out as slices."""
    named = len([i for i in items if i is not None and i is not Ellipsis])
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    return [*items[:at], *[slice(None)] * (ndim - named), *items[at + 1 :]]


@implements("__getitem__", (Format, Format), when=takes_getitem)
def getitem(input: SparseTensor, index: Any) -> Any:
    """Index by integers, slices, None and ..., and the first dimension also by a tensor or list; it stays sparse."""
    index = _number(index)
    if type(index) is int and is_stack(input):
        return matrix_of(input, index)
    if isinstance(index, (list, Tensor)):
        index = torch.as_tensor(index, device=input._values.device)
        if index.dtype == torch.bool:
            index = torch.nonzero(index).squeeze(1)
        return take_slices(input, 0, index, negative=True)
    return cut(input, written_out(list(index) if isinstance(index, tuple) else [index], len(input._dense_shape)))


def cut(input: SparseTensor, items: list[Any]) -> Any:
    """Index by a number or a slice for each dimension, and None for new ones."""
    coords, values = coords_of(input)
    keep = torch.ones(values.numel(), dtype=torch.bool, device=values.device)
    shape: list[int] = []
    out: list[Tensor] = []
    d = 0
    for item in items:
        if item is None:
            shape.append(1)
            out.append(torch.zeros_like(keep, dtype=torch.int64))
            continue
        size, coord = input._dense_shape[d], coords[d]
        d += 1
        if isinstance(item, int):
            keep = keep & (coord == item % size)
            continue
        start, stop, step = item.indices(size)
        keep = keep & (coord >= start) & (coord < stop) & ((coord - start) % step == 0)
        shape.append(len(range(start, stop, step)))
        out.append(torch.div(coord - start, step, rounding_mode="floor"))
    keys = ravel([c[keep] for c in out], shape) if out else torch.zeros_like(coords[0][keep])
    return from_entries(keys, values[keep], shape, input.format.general())


# -- slices of one dimension


def _takes_index_select(input: SparseTensor, dim: int, index: Tensor) -> str | None:
    if not input._dense_shape:
        return _NO_DIM
    return None if index.dim() == 1 and index.dtype in _INTEGERS else "the index is no vector of integers"


@implements(torch.index_select, (Format, Dense, Dense), when=_takes_index_select)
def index_select(input: SparseTensor, dim: int, index: Tensor) -> Any:
    """Take some of the slices along a dimension, in any order, any number of times."""
    return take_slices(input, dim, index, negative=False)


def take_slices(input: SparseTensor, dim: int, index: Tensor, negative: bool) -> Any:
    """Take slices of a dimension, in any order, any number of times; ``negative`` numbers may count from the end."""
    dim = dim_of(dim, len(input._dense_shape))
    size, index = input._dense_shape[dim], index.long()
    if index.numel() and (int(index.min()) < (-size if negative else 0) or int(index.max()) >= size):
        raise IndexError("index out of range in self")
    source, entry = select_entries(input, dim, index % max(size, 1))
    coords, values = coords_of(input)
    shape = [*input._dense_shape]
    shape[dim] = index.numel()
    moved = [source if d == dim else c[entry] for d, c in enumerate(coords)]
    return from_entries(ravel(moved, shape), values[entry], shape, input.format.general())


def select_entries(input: SparseTensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """For slices ``index`` of a dimension: which place of index each selected entry goes to, and which entry it is."""
    coords, _ = coords_of(input)
    order = torch.argsort(coords[dim], stable=True)
    bounds = torch.arange(input._dense_shape[dim] + 1, device=order.device)
    pos = torch.searchsorted(coords[dim][order], bounds)
    count = pos[index + 1] - pos[index]
    source = torch.repeat_interleave(torch.arange(index.numel(), device=order.device), count)
    first = torch.cumsum(count, 0) - count
    return source, order[pos[index][source] + torch.arange(source.numel(), device=order.device) - first[source]]


def _takes_select(input: SparseTensor, dim: int, index: int) -> str | None:
    shape = input._dense_shape
    if not shape or not isinstance(index, int):
        return "there is no dimension, or the index is no number"
    size = shape[dim_of(dim, len(shape))]
    return None if -size <= index < size else _RANGE


@implements(torch.select, (Format,), when=_takes_select)
def select(input: SparseTensor, dim: int, index: int) -> Any:
    """Take one slice along a dimension."""
    if is_stack(input) and dim_of(dim, 3) == 0:
        return matrix_of(input, index)
    items: list[Any] = [slice(None)] * len(input._dense_shape)
    items[dim_of(dim, len(items))] = index
    return cut(input, items)


def _takes_narrow(input: SparseTensor, dim: int, start: int, length: int) -> str | None:
    shape = input._dense_shape
    size = shape[dim_of(dim, len(shape))] if shape else 0
    return None if isinstance(start, int) and 0 <= start <= start + length <= size else _RANGE


@implements(torch.narrow, (Format,), when=_takes_narrow)
def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """Take consecutive slices along a dimension."""
    items = [slice(None)] * len(input._dense_shape)
    items[dim_of(dim, len(items))] = slice(start, start + length)
    return cut(input, items)


# -- into pieces


def takes_dims(input: SparseTensor, *args: Any, **kwargs: Any) -> str | None:
    """Guard of what needs a dimension."""
    return None if input._dense_shape else _NO_DIM


@implements(torch.unbind, (Format,), when=takes_dims)
def unbind(input: SparseTensor, dim: int = 0) -> tuple[Any, ...]:
    """Return all slices along a dimension."""
    size = input._dense_shape[dim_of(dim, len(input._dense_shape))]
    return tuple(select(input, dim, i) for i in range(size))


def _sections(size: int, sections: Any) -> list[int] | None:
    """Return the sizes of pieces, given their size or sizes; None if they don't fit."""
    if isinstance(sections, int):
        if sections < 1:
            return None
        return [min(sections, size - i) for i in range(0, max(size, 1), sections)]
    return list(sections) if sum(sections) == size else None


def takes_split(input: SparseTensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> str | None:
    """Guard of split."""
    shape = input._dense_shape
    if not shape:
        return _NO_DIM
    found = _sections(shape[dim_of(dim, len(shape))], split_size_or_sections)
    return None if found is not None else "the pieces don't add up to the dimension"


def split(input: SparseTensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Any, ...]:
    """Cut along a dimension into pieces of a size, or of given sizes."""
    size = input._dense_shape[dim_of(dim, len(input._dense_shape))]
    sections = _sections(size, split_size_or_sections)
    assert sections is not None
    starts = itertools.accumulate(sections, initial=0)
    return tuple(narrow(input, dim, start, length) for start, length in zip(starts, sections, strict=False))


for _name in ("split", "split_with_sizes"):
    implements(_name, (Format,), when=takes_split)(split)


def takes_chunk(input: SparseTensor, chunks: int, dim: int = 0) -> str | None:
    """Guard of chunk."""
    shape = input._dense_shape
    if not shape or chunks < 1 or shape[dim_of(dim, len(shape))] == 0:
        return "there is nothing to cut, or into no pieces"
    return None


@implements(torch.chunk, (Format,), when=takes_chunk)
def chunk(input: SparseTensor, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    """Cut along a dimension into at most this number of pieces."""
    size = input._dense_shape[dim_of(dim, len(input._dense_shape))]
    return split(input, -(-size // chunks), dim)


def _takes_tensor_split(input: SparseTensor, indices_or_sections: Any, dim: int = 0) -> str | None:
    if isinstance(indices_or_sections, int) and indices_or_sections < 1:
        return "there are no pieces"
    return takes_dims(input)


@implements(torch.tensor_split, (Format,), when=_takes_tensor_split)
def tensor_split(input: SparseTensor, indices_or_sections: Any, dim: int = 0) -> tuple[Any, ...]:
    """Cut along a dimension at places, or into nearly equal pieces."""
    at, cuts = dim_of(dim, len(input._dense_shape)), indices_or_sections
    size = input._dense_shape[at]
    if isinstance(cuts, int):
        small, more = divmod(size, cuts)
        cuts = [i * small + min(i, more) for i in range(1, cuts)]
    items: list[Any] = [slice(None)] * len(input._dense_shape)
    out = []
    for start, stop in itertools.pairwise([0, *cuts, size]):
        items[at] = slice(start, stop)
        out.append(cut(input, list(items)))
    return tuple(out)


def _split_along(name: str, least: int, dim: Callable[[int], int]) -> None:
    """Register torch.hsplit, vsplit and dsplit."""

    def guard(input: SparseTensor, indices_or_sections: Any) -> str | None:
        shape, cuts = input._dense_shape, indices_or_sections
        if len(shape) < least:
            return "it has too few dimensions"
        if isinstance(cuts, int) and (cuts < 1 or shape[dim(len(shape))] % cuts):
            return "the pieces would not be equal"
        return _takes_tensor_split(input, cuts)

    def run(input: SparseTensor, indices_or_sections: Any) -> tuple[Any, ...]:
        return tensor_split(input, indices_or_sections, dim(len(input._dense_shape)))

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=guard)(run)


_split_along("hsplit", 1, lambda ndim: 0 if ndim == 1 else 1)
_split_along("vsplit", 2, lambda ndim: 0)
_split_along("dsplit", 3, lambda ndim: 2)
