"""Repeating, turning, cutting and stacking: what follows from indexing and joining in :mod:`gossamer.ops.shape`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, build, from_entries, values_of
from gossamer.formats import Format
from gossamer.formats.structure import ravel
from gossamer.ops import shape as shapes


def _dims(dims: Any, ndim: int) -> list[int]:
    return [shapes._dim(d, ndim) for d in ([dims] if isinstance(dims, int) else dims)]


# -- repeating


@implements("expand", (Format,))
def expand(input: SparseTensor, *sizes: Any, implicit: bool = False) -> Any:
    """Repeat along dimensions of size 1 and new leading ones; every copy of an entry is an entry."""
    wanted, have = shapes.sizes_of(sizes), tuple(input._dense_shape)
    lead = len(wanted) - len(have)
    if lead < 0 or not all(isinstance(w, int) for w in wanted):
        return NotImplemented
    pairs = list(zip(wanted[lead:], have, strict=True))
    if any(w not in (-1, h) and h != 1 for w, h in pairs) or any(w < 0 for w in wanted[:lead]):
        return NotImplemented  # torch's own error, from the dense path
    target = (*wanted[:lead], *(h if w == -1 else w for w, h in pairs))
    if target == have:
        return build(values_of(input), input.structure)
    source = shapes.reshape(input, (1,) * lead + have)
    repeats = [t if s == 1 else 1 for t, s in zip(target, source.shape, strict=True)]
    return _repeated(source, repeats)


def _repeated(input: SparseTensor, repeats: Sequence[int]) -> Tensor:
    """Lay copies of a tensor side by side: ``repeats`` of them along each dimension."""
    coords, values = shapes._coords(input)
    copies = math.prod(repeats)
    which = torch.arange(copies, device=values.device)
    moved: list[Tensor] = []
    for coord, size, count in zip(reversed(coords), reversed(input._dense_shape), reversed(repeats), strict=True):
        moved.insert(0, ((which % max(count, 1) * size)[:, None] + coord).reshape(-1))
        which = which // max(count, 1)
    shape = tuple(s * r for s, r in zip(input._dense_shape, repeats, strict=True))
    return from_entries(ravel(moved, shape), values.repeat(copies), shape, input.format.general())


@implements(torch.broadcast_to, (Format,))
def broadcast_to(input: SparseTensor, size: Sequence[int]) -> Any:
    """Repeat a tensor to a shape."""
    return NotImplemented if -1 in size else expand(input, size)


@implements("expand_as", (Format, Format))
def expand_as(input: Tensor, other: Tensor) -> Any:
    """Repeat a tensor to the shape of another."""
    return expand(input, tuple(other.shape)) if isinstance(input, SparseTensor) else input.expand(other.shape)


@implements("repeat", (Format,))
def repeat(input: SparseTensor, *sizes: Any, repeats: Any = None) -> Any:
    """Repeat along every dimension."""
    counts = shapes.sizes_of(sizes) if repeats is None else tuple(repeats)
    lead = len(counts) - input.dim()
    if lead < 0 or not counts or any(not isinstance(c, int) or c < 0 for c in counts):
        return NotImplemented
    return _repeated(shapes.reshape(input, (1,) * lead + tuple(input._dense_shape)), counts)


@implements(torch.tile, (Format,))
def tile(input: SparseTensor, *args: Any, dims: Any = None) -> Any:
    """Repeat along the last dimensions."""
    counts = shapes.sizes_of(args) if dims is None else tuple(dims)
    return repeat(input, *(1,) * (input.dim() - len(counts)), *counts)


# -- turning


@implements(torch.flip, (Format,))
def flip(input: SparseTensor, *args: Any, dims: Any = None) -> Any:
    """Reverse the order along dimensions."""
    turned = _dims(shapes.sizes_of(args) if dims is None else dims, input.dim())
    if len(set(turned)) != len(turned) or not input.dim():
        return NotImplemented
    coords, values = shapes._coords(input)
    shape = input._dense_shape
    coords = [shape[d] - 1 - c if d in turned else c for d, c in enumerate(coords)]
    return from_entries(ravel(coords, shape), values, shape, input.format.general())


implements(torch.fliplr, (Format,))(lambda input: flip(input, 1) if input.dim() > 1 else NotImplemented)
implements(torch.flipud, (Format,))(lambda input: flip(input, 0) if input.dim() > 0 else NotImplemented)


@implements(torch.roll, (Format,))
def roll(input: SparseTensor, shifts: Any, dims: Any = None) -> Any:
    """Move entries along dimensions, round the end."""
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    if dims is None or (not isinstance(dims, int) and not dims):
        if len(shifts) != 1 or not input.dim():
            return NotImplemented
        return shapes.reshape(roll(shapes.flatten(input), shifts, 0), tuple(input._dense_shape))
    along = _dims(dims, input.dim())
    if len(along) != len(shifts) or not input.dim():
        return NotImplemented
    coords, values = shapes._coords(input)
    shape = input._dense_shape
    for d, shift in zip(along, shifts, strict=True):
        coords[d] = (coords[d] + shift) % max(shape[d], 1)
    return from_entries(ravel(coords, shape), values, shape, input.format.general())


@implements(torch.movedim, (Format,))
def movedim(input: SparseTensor, source: Any, destination: Any) -> Any:
    """Move dimensions to other places."""
    taken, put = _dims(source, input.dim()), _dims(destination, input.dim())
    if len(set(taken)) != len(taken) or len(set(put)) != len(put) or len(taken) != len(put) or not input.dim():
        return NotImplemented
    rest = iter(d for d in range(input.dim()) if d not in taken)
    places = dict(zip(put, taken, strict=True))
    return shapes.permute(input, [places[i] if i in places else next(rest) for i in range(input.dim())])


# -- cutting


@implements("unflatten", (Format,))
def unflatten(input: SparseTensor, dim: int, sizes: Sequence[int]) -> Any:
    """Make several dimensions of one."""
    if not input.dim() or not isinstance(sizes, (tuple, list)):
        return NotImplemented
    at, shape = shapes._dim(dim, input.dim()), tuple(input._dense_shape)
    known = math.prod(s for s in sizes if s != -1)
    fits = known == shape[at] if -1 not in sizes else known and shape[at] % known == 0 and list(sizes).count(-1) == 1
    if not fits or not sizes:
        return NotImplemented
    whole = tuple(shape[at] // known if s == -1 else s for s in sizes)
    return shapes.reshape(input, (*shape[:at], *whole, *shape[at + 1 :]))


@implements(torch.chunk, (Format,))
def chunk(input: SparseTensor, chunks: int, dim: int = 0) -> Any:
    """Cut along a dimension into at most so many pieces."""
    if not input.dim() or chunks < 1:
        return NotImplemented
    size = input._dense_shape[shapes._dim(dim, input.dim())]
    if size == 0:
        return NotImplemented
    return shapes.split(input, -(-size // chunks), dim)


@implements(torch.tensor_split, (Format,))
def tensor_split(input: SparseTensor, indices_or_sections: Any, dim: int = 0) -> Any:
    """Cut along a dimension at places, or into nearly equal pieces."""
    if not input.dim() or isinstance(indices_or_sections, Tensor):
        return NotImplemented
    size, cuts = input._dense_shape[shapes._dim(dim, input.dim())], indices_or_sections
    if isinstance(cuts, int):
        if cuts < 1:
            return NotImplemented
        small, more = divmod(size, cuts)
        cuts = [i * small + min(i, more) for i in range(1, cuts)]
    bounds = [0, *cuts, size]
    items: list[Any] = [slice(None)] * input.dim()
    out = []
    for start, stop in itertools.pairwise(bounds):
        items[shapes._dim(dim, input.dim())] = slice(start, stop)
        out.append(shapes._cut(input, list(items)))
    return tuple(out)


def _split_along(least: int, dim: Callable[[int], int]) -> Callable[..., Any]:
    """torch.hsplit, vsplit and dsplit."""

    def run(input: SparseTensor, indices_or_sections: Any) -> Any:
        if input.dim() < least:
            return NotImplemented
        at, cuts = dim(input.dim()), indices_or_sections
        if isinstance(cuts, int) and (cuts < 1 or input._dense_shape[at] % cuts):
            return NotImplemented  # torch's own error, from the dense path
        return tensor_split(input, cuts, at)

    return run


implements("split_with_sizes", (Format,))(shapes.split)
implements(torch.hsplit, (Format,))(_split_along(1, lambda ndim: 0 if ndim == 1 else 1))
implements(torch.vsplit, (Format,))(_split_along(2, lambda ndim: 0))
implements(torch.dsplit, (Format,))(_split_along(3, lambda ndim: 2))


# -- stacking


def _raised(ndim: int) -> Callable[[Tensor], Any]:
    """torch.atleast_1d, 2d or 3d of one tensor."""

    def run(input: Tensor) -> Any:
        if not isinstance(input, SparseTensor):
            return NotImplemented
        shape = tuple(input._dense_shape)
        if len(shape) >= ndim:
            return input
        if ndim == 3 and len(shape) == 2:
            return shapes.reshape(input, (*shape, 1))
        if ndim == 3 and len(shape) == 1:
            return shapes.reshape(input, (1, *shape, 1))
        return shapes.reshape(input, (1,) * (ndim - len(shape)) + shape)

    return run


def _stacked(raise_: Callable[[Any], Any], dim: Callable[[Tensor], int]) -> Callable[..., Any]:
    def run(tensors: Sequence[Tensor]) -> Any:
        if not all(isinstance(t, SparseTensor) for t in tensors) or not tensors:
            return NotImplemented
        raised = [raise_(t) for t in tensors]
        return shapes.cat(raised, dim(raised[0]))

    return run


def _as_column(input: SparseTensor) -> Any:
    return input if input.dim() > 1 else shapes.reshape(input, (input._dense_shape.numel(), 1))


for _ndim in (1, 2, 3):
    implements(f"atleast_{_ndim}d", (Format,))(_raised(_ndim))
implements(torch.hstack, (Format,))(_stacked(_raised(1), lambda t: 0 if t.dim() == 1 else 1))
implements(torch.vstack, (Format,))(_stacked(_raised(2), lambda t: 0))
implements(torch.dstack, (Format,))(_stacked(_raised(3), lambda t: 2))
implements(torch.column_stack, (Format,))(_stacked(_as_column, lambda t: 1))
implements("ravel", (Format,))(lambda input: shapes.flatten(input))


@implements("view_as", (Format, Format))
def view_as(input: Tensor, other: Tensor) -> Any:
    """Give a tensor the shape of another."""
    return shapes.reshape(input, tuple(other.shape)) if isinstance(input, SparseTensor) else input.view(other.shape)


@implements(torch.nn.functional.pad, (Format,))
def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Add zeros around a tensor."""
    count = len(pad) // 2
    if mode != "constant" or value not in (None, 0) or len(pad) % 2 or count > input.dim() or any(p < 0 for p in pad):
        return NotImplemented
    before = [0] * (input.dim() - count) + list(pad[-2::-2])
    after = [0] * (input.dim() - count) + list(pad[::-2])
    coords, values = shapes._coords(input)
    shape = tuple(s + b + a for s, b, a in zip(input._dense_shape, before, after, strict=True))
    if not shape:
        return NotImplemented
    return from_entries(
        ravel([c + b for c, b in zip(coords, before, strict=True)], shape), values, shape, input.format.general()
    )


@implements(torch.constant_pad_nd, (Format,))
def constant_pad_nd(input: SparseTensor, pad: Sequence[int], value: float = 0) -> Any:
    """Add zeros around a tensor."""
    return _pad(input, pad, "constant", value)


_pad = pad


# -- diagonals


@implements(torch.diagonal, (Format,))
def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Take a diagonal of two dimensions; it becomes the last one."""
    if input.dim() < 2:
        return NotImplemented
    a, b = shapes._dim(dim1, input.dim()), shapes._dim(dim2, input.dim())
    if a == b:
        return NotImplemented
    coords, values = shapes._coords(input)
    keep = coords[b] - coords[a] == offset
    rest = [d for d in range(input.dim()) if d not in (a, b)]
    rows, cols = input._dense_shape[a], input._dense_shape[b]
    length = max(min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols), 0)
    shape = (*(input._dense_shape[d] for d in rest), length)
    moved = [coords[d][keep] for d in rest] + [coords[a if offset >= 0 else b][keep]]
    return from_entries(ravel(moved, shape), values[keep], shape, input.format.general())


@implements(torch.diag, (Format,))
def diag(input: SparseTensor, diagonal: int = 0) -> Any:
    """Take the diagonal of a matrix, or make a matrix of a diagonal."""
    if input.dim() == 2:
        return _diagonal(input, diagonal)
    if input.dim() != 1:
        return NotImplemented
    coords, values = shapes._coords(input)
    size = input._dense_shape[0] + abs(diagonal)
    row, col = coords[0] + max(-diagonal, 0), coords[0] + max(diagonal, 0)
    return from_entries(row * size + col, values, (size, size), input.format.general())


_diagonal = diagonal


@implements(torch.trace, (Format,))
def trace(input: SparseTensor) -> Any:
    """Sum of the diagonal of a matrix."""
    return values_of(diagonal(input)).sum() if input.dim() == 2 else NotImplemented


# -- forms that promise a copy


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        if out is NotImplemented:
            return out
        return tuple(o.clone() for o in out) if isinstance(out, tuple) else out.clone()

    return run


for _name, _function in {
    "t": shapes._transpose_all, "transpose": shapes.transpose, "permute": shapes.permute, "view": shapes.reshape,
    "squeeze": shapes.squeeze, "unsqueeze": shapes.unsqueeze, "unbind": shapes.unbind, "expand": expand,
    "split_with_sizes": shapes.split, "diagonal": diagonal, "alias": lambda input: input,
}.items():  # fmt: skip
    implements(f"{_name}_copy", (Format,))(_copied(_function))
for _name in ("unsafe_split", "unsafe_chunk"):
    implements(_name, (Format,))(_copied(shapes.split if _name == "unsafe_split" else chunk))
