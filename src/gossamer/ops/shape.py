"""Transposes, views, indexing, joining and cutting: the result stays sparse.

All of it is arithmetic on the numbers of the stored entries: an entry moves, appears more than once, or drops out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, build, entries_of, from_entries, values_of
from gossamer.formats import Dense, Format, Masked, Structure
from gossamer.formats.structure import ravel, unravel


def _coords(tensor: SparseTensor) -> tuple[list[Tensor], Tensor]:
    keys, values = entries_of(tensor)
    return unravel(keys, tuple(tensor._dense_shape) or (1,)), values


def _dim(dim: int, ndim: int) -> int:
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    return dim % max(ndim, 1)


def sizes_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes or dimensions given one by one, or as one sequence."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


# -- transposes


@implements(torch.permute, (Format,))
def permute(input: SparseTensor, *args: Any, dims: Any = None) -> Any:
    """Reorder the dimensions; of a matrix in a format that reads both ways, without moving a value."""
    dims = sizes_of(args) if dims is None else dims
    order = [_dim(d, input.dim()) for d in dims]
    if sorted(order) != list(range(input.dim())):
        return NotImplemented  # torch's own error, from the dense path
    shape = tuple(input._dense_shape[d] for d in order)
    structure = input.structure
    if order == list(range(input.dim())):
        return build(values_of(input), structure)
    if isinstance(structure.format, Masked):
        (name, mask), *_ = structure.arrays.items()
        mask = mask.view(structure.value_shape).permute(order)
        moved = Structure(structure.format, shape, {name: mask}, structure.device)
        return build(values_of(input).permute(order), moved)
    flipped = structure.format.transposed() if len(order) == 2 else None
    if flipped is not None:
        return build(values_of(input), Structure(flipped, shape, structure.arrays, structure.device))
    coords, values = _coords(input)
    return from_entries(ravel([coords[d] for d in order], shape), values, shape, structure.format.general())


@implements(torch.transpose, (Format,))
def transpose(input: SparseTensor, dim0: int, dim1: int) -> Any:
    """Exchange two dimensions."""
    a, b = _dim(dim0, input.dim()), _dim(dim1, input.dim())
    order = list(range(input.dim()))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute(input, order) if order else build(values_of(input), input.structure)


def _matrix_transpose(input: SparseTensor) -> Any:
    return transpose(input, -1, -2) if input.dim() >= 2 else NotImplemented


def _transpose_all(input: SparseTensor) -> Any:
    return permute(input, list(range(input.dim()))[::-1]) if input.dim() <= 2 else NotImplemented


for _name in ("t", "T.get", "numpy_T"):
    implements(_name, (Format,))(_transpose_all)
for _name in ("mT.get", "adjoint", "mH.get"):
    implements(_name, (Format,))(lambda input: _matrix_transpose(input) if not input.is_complex() else NotImplemented)


# -- views


@implements(torch.reshape, (Format,))
def reshape(input: SparseTensor, *args: Any, shape: Any = None) -> Any:
    """Give the same entries another shape."""
    sizes = sizes_of(args) if shape is None else tuple(shape)
    if not all(isinstance(s, int) for s in sizes):
        return NotImplemented  # view(dtype) and the like
    total = input._dense_shape.numel()
    known = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) > 1 or (-1 in sizes and (known == 0 or total % known)) or (-1 not in sizes and known != total):
        return NotImplemented
    target = tuple(total // known if s == -1 else s for s in sizes)
    if target == tuple(input._dense_shape):
        return build(values_of(input), input.structure)
    if isinstance(input.format, Masked):
        (mask,) = input.structure.arrays.values()
        name = f"mask{max(len(target), 1) - 1}"
        structure = Structure(Masked(), target, {name: mask.reshape(target or (1,))}, input._values.device)
        return build(values_of(input).reshape(structure.value_shape), structure)
    keys, values = entries_of(input)
    return from_entries(keys, values, target, input.format.general())


@implements(torch.flatten, (Format,))
def flatten(input: SparseTensor, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Join neighbouring dimensions into one."""
    shape, n = tuple(input._dense_shape), input.dim()
    start, end = _dim(start_dim, n), _dim(end_dim, n)
    if start > end:
        return NotImplemented
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@implements(torch.unsqueeze, (Format,))
def unsqueeze(input: SparseTensor, dim: int) -> Any:
    """Add a dimension of size 1."""
    at = _dim(dim, input.dim() + 1)
    shape = tuple(input._dense_shape)
    return reshape(input, (*shape[:at], 1, *shape[at:]))


@implements(torch.squeeze, (Format,))
def squeeze(input: SparseTensor, dim: int | Sequence[int] | None = None) -> Any:
    """Drop dimensions of size 1."""
    dims = range(input.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {_dim(d, input.dim()) for d in dims}
    return reshape(input, tuple(s for d, s in enumerate(input._dense_shape) if s != 1 or d not in gone))


# -- indexing


@implements("__getitem__", (Format, Format))
def getitem(input: SparseTensor, index: Any) -> Any:
    """Index by integers, slices, None and ..., and the first dimension also by a tensor or list; it stays sparse."""
    if isinstance(index, (list, Tensor)):
        return _take_rows(input, index)
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(i, bool) or not isinstance(i, (int, slice, type(None), type(...))) for i in items):
        return NotImplemented
    named = len([i for i in items if i is not None and i is not Ellipsis])
    if named > input.dim() or items.count(Ellipsis) > 1:
        return NotImplemented
    fill = [slice(None)] * (input.dim() - named)
    at = items.index(Ellipsis) if Ellipsis in items else len(items)
    return _cut(input, items[:at] + fill + items[at + 1 :])


def _cut(input: SparseTensor, items: list[Any]) -> Any:
    coords, values = _coords(input)
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
            if not -size <= item < size:
                return NotImplemented  # torch's own error, from the dense path
            keep = keep & (coord == item % size)
            continue
        start, stop, step = item.indices(size)
        if step < 1:
            return NotImplemented
        keep = keep & (coord >= start) & (coord < stop) & ((coord - start) % step == 0)
        shape.append(len(range(start, stop, step)))
        out.append(torch.div(coord - start, step, rounding_mode="floor"))
    keys = ravel([c[keep] for c in out], shape) if out else torch.zeros_like(coords[0][keep])
    return from_entries(keys, values[keep], shape, input.format.general())


def _take_rows(input: SparseTensor, index: Any) -> Any:
    index = torch.as_tensor(index, device=input._values.device)
    if index.dtype == torch.bool and index.shape == input._dense_shape[:1]:
        index = torch.nonzero(index).squeeze(1)
    if index.dim() != 1 or index.dtype not in (torch.int64, torch.int32) or not input.dim():
        return NotImplemented
    return index_select(input, 0, index)


@implements(torch.index_select, (Format, Dense, Dense))
def index_select(input: SparseTensor, dim: int, index: Tensor) -> Any:
    """Take some of the slices along a dimension, in any order, any number of times."""
    if input.dim() == 0 or isinstance(index, SparseTensor) or index.dim() != 1:
        return NotImplemented
    dim, size = _dim(dim, input.dim()), input._dense_shape[dim]
    index = index.long()
    if index.numel() and (int(index.min()) < -size or int(index.max()) >= size):
        return NotImplemented
    source, entry = select_entries(input, dim, index % max(size, 1))
    coords, values = _coords(input)
    shape = [*input._dense_shape]
    shape[dim] = index.numel()
    moved = [source if d == dim else c[entry] for d, c in enumerate(coords)]
    return from_entries(ravel(moved, shape), values[entry], shape, input.format.general())


def select_entries(input: SparseTensor, dim: int, index: Tensor) -> tuple[Tensor, Tensor]:
    """For slices ``index`` of a dimension: which place of index each selected entry goes to, and which entry it is."""
    coords, _ = _coords(input)
    order = torch.argsort(coords[dim], stable=True)
    bounds = torch.arange(input._dense_shape[dim] + 1, device=order.device)
    pos = torch.searchsorted(coords[dim][order], bounds)
    count = pos[index + 1] - pos[index]
    source = torch.repeat_interleave(torch.arange(index.numel(), device=order.device), count)
    first = torch.cumsum(count, 0) - count
    return source, order[pos[index][source] + torch.arange(source.numel(), device=order.device) - first[source]]


@implements(torch.select, (Format,))
def select(input: SparseTensor, dim: int, index: int) -> Any:
    """Take one slice along a dimension."""
    items: list[Any] = [slice(None)] * input.dim()
    items[_dim(dim, input.dim())] = index
    return _cut(input, items) if input.dim() and isinstance(index, int) else NotImplemented


@implements(torch.narrow, (Format,))
def narrow(input: SparseTensor, dim: int, start: int, length: int) -> Any:
    """Take consecutive slices along a dimension."""
    size = input._dense_shape[_dim(dim, input.dim())] if input.dim() else 0
    if not isinstance(start, int) or not 0 <= start <= start + length <= size:
        return NotImplemented
    items = [slice(None)] * input.dim()
    items[_dim(dim, input.dim())] = slice(start, start + length)
    return _cut(input, items)


@implements(torch.unbind, (Format,))
def unbind(input: SparseTensor, dim: int = 0) -> Any:
    """Return all slices along a dimension."""
    if input.dim() == 0:
        return NotImplemented
    return tuple(select(input, dim, i) for i in range(input._dense_shape[_dim(dim, input.dim())]))


@implements(torch.split, (Format,))
def split(input: SparseTensor, split_size_or_sections: int | Sequence[int], dim: int = 0) -> Any:
    """Cut along a dimension into pieces of a size, or of given sizes."""
    if input.dim() == 0:
        return NotImplemented
    size, sections = input._dense_shape[_dim(dim, input.dim())], split_size_or_sections
    if isinstance(sections, int):
        if sections < 1:
            return NotImplemented
        sections = [min(sections, size - i) for i in range(0, max(size, 1), sections)]
    if builtin_sum(sections) != size:
        return NotImplemented
    starts = [builtin_sum(sections[:i]) for i in range(len(sections))]
    return tuple(narrow(input, dim, s, n) for s, n in zip(starts, sections, strict=True))


builtin_sum = sum


# -- joining


@implements(torch.cat, (Format,))
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join tensors along a dimension: sparse ones in the first one's format; with a dense one among them, dense."""
    if not all(isinstance(t, SparseTensor) for t in tensors):
        return torch.cat([t.to_dense() if isinstance(t, SparseTensor) else t for t in tensors], dim)
    first: SparseTensor = tensors[0]  # type: ignore[assignment]
    dim = _dim(dim, first.dim())
    others = [[s for d, s in enumerate(t.shape) if d != dim] for t in tensors]
    if first.dim() == 0 or any(o != others[0] or t.dim() != first.dim() for o, t in zip(others, tensors, strict=True)):
        return NotImplemented
    shape = list(first.shape)
    shape[dim] = builtin_sum(t.shape[dim] for t in tensors)
    keys, values, offset = [], [], 0
    for t in tensors:
        coords, v = _coords(t)  # type: ignore[arg-type]
        coords[dim] = coords[dim] + offset
        keys.append(ravel(coords, shape))
        values.append(v)
        offset += t.shape[dim]
    return from_entries(torch.cat(keys), torch.cat(values), shape, first.format.general())


@implements(torch.stack, (Format,))
def stack(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join sparse tensors along a new dimension."""
    if not all(isinstance(t, SparseTensor) for t in tensors) or any(t.shape != tensors[0].shape for t in tensors):
        return NotImplemented
    return cat([unsqueeze(t, dim) for t in tensors], dim)


# -- triangles


def _triangle(lower: bool) -> Any:
    def run(input: SparseTensor, diagonal: int = 0) -> Any:
        if input.dim() < 2:
            return NotImplemented
        coords, values = _coords(input)
        offset = coords[-1] - coords[-2]
        keep = offset <= diagonal if lower else offset >= diagonal
        keys = ravel([c[keep] for c in coords], input._dense_shape)
        return from_entries(keys, values[keep], input._dense_shape, input.format.general())

    return run


tril = implements(torch.tril, (Format,))(_triangle(lower=True))
triu = implements(torch.triu, (Format,))(_triangle(lower=False))
