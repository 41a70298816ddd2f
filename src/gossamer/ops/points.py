"""Indexing by vectors: some slices of a dimension (``a[:, index]``), or single points (``a[i, j]``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import entries_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.keys import ravel
from gossamer.ops.index import cut, take_slices, takes_getitem, written_out

_INTEGERS = (torch.int64, torch.int32)


def _is_vector(item: Any) -> bool:
    """Is it an index of several places?"""
    return isinstance(item, (list, Tensor)) and not isinstance(item, SparseTensor)


def _vector(item: Any, device: torch.device | None = None) -> Tensor:
    return torch.as_tensor(item, dtype=torch.int64 if isinstance(item, list) and not item else None, device=device)


def _takes_vectors(input: SparseTensor, index: Any) -> str | None:
    if not isinstance(index, tuple) or not any(_is_vector(item) for item in index):
        return "no dimension is indexed by a vector"
    if sum(item is Ellipsis for item in index) > 1 or sum(_counts(item) for item in index) > len(input._dense_shape):
        return "there are too many indices"
    if any(_counts(item) and not (_is_vector(item) or isinstance(item, slice)) for item in index):
        return "vectors are mixed with numbers"
    vectors = [_vector(item) for item in index if _is_vector(item)]
    if any(vector.dtype not in (*_INTEGERS, torch.bool) for vector in vectors):
        return "an index is no integer"
    if len(vectors) == 1:
        return _takes_slices(input, index, vectors[0])
    if len(vectors) != len(input._dense_shape) or len(index) != len(vectors):
        return "several vectors, but not one for each dimension"
    return "a mask is mixed with other vectors" if any(v.dtype == torch.bool for v in vectors) else None


def _counts(item: Any) -> bool:
    """Does an item of an index stand for a dimension?"""
    return item is not None and item is not Ellipsis


def _takes_slices(input: SparseTensor, index: tuple[Any, ...], vector: Tensor) -> str | None:
    if vector.dim() != 1:
        return "the index is no vector"
    items = [slice(None) if _is_vector(item) else item for item in index]
    refused = takes_getitem(input, tuple(items))
    if refused is None and vector.dtype == torch.bool:
        at = _place(index, len(input._dense_shape))
        if vector.numel() != input._dense_shape[at]:
            return "a mask has another size than its dimension"
    return refused


def _place(index: tuple[Any, ...], ndim: int) -> int:
    """Return the dimension that the vector among the items of an index stands for."""
    marked = ["vector" if _is_vector(item) else item for item in index]  # a tensor can't be compared with ...
    return [item for item in written_out(marked, ndim) if item is not None].index("vector")


@implements("__getitem__", (Format, Format), when=_takes_vectors)
def by_vectors(input: SparseTensor, index: Any) -> Any:
    """Take slices of a dimension (the result is sparse), or single points (it is dense)."""
    if sum(_is_vector(item) for item in index) > 1:
        return points(input, [_vector(item, input._values.device) for item in index])
    at = _place(index, len(input._dense_shape))
    vector = _vector(next(item for item in index if _is_vector(item)), input._values.device)
    if vector.dtype == torch.bool:
        vector = torch.nonzero(vector).squeeze(1)
    taken = take_slices(input, at, vector, negative=True)
    rest = [slice(None) if _is_vector(item) else item for item in index]
    return cut(taken, written_out(rest, len(input._dense_shape)))


def points(input: SparseTensor, index: list[Tensor]) -> Tensor:
    """Return the values at points, one vector of coordinates for each dimension: zero where nothing is stored."""
    for vector, size in zip(index, input._dense_shape, strict=True):
        if vector.numel() and (int(vector.min()) < -size or int(vector.max()) >= size):
            raise IndexError("index out of range in self")
    wrapped = [vector.long() % max(size, 1) for vector, size in zip(index, input._dense_shape, strict=True)]
    keys = ravel(torch.broadcast_tensors(*wrapped), input._dense_shape)
    have, values = entries_of(input)
    if not have.numel():
        return values.new_zeros(keys.shape)
    order = torch.argsort(have)
    found = order[torch.searchsorted(have[order], keys).clamp(max=have.numel() - 1)]
    return torch.where(have[found] == keys, values[found], 0)
