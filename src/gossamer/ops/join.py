"""Joining and repeating: entries of several tensors, or several copies of entries. The result stays sparse."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, from_entries, values_of
from gossamer.core.look import shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.keys import ravel
from gossamer.ops.shape import coords_of, dim_of, raised, reshape, sizes_of, unsqueeze

_SOME_DENSE = "some of the tensors are dense, or there is none"


# -- joining


def takes_cat(tensors: Sequence[Tensor], dim: int = 0) -> str | None:
    """Guard of cat."""
    if not all(isinstance(t, SparseTensor) for t in tensors):
        return None  # dense by nature
    first = shape_of(tensors[0])
    if not first:
        return "there is no dimension"
    at = dim_of(dim, len(first))
    rest = [[s for d, s in enumerate(shape_of(t)) if d != at] for t in tensors]
    alike = all(o == rest[0] and len(shape_of(t)) == len(first) for o, t in zip(rest, tensors, strict=True))
    return None if alike else "the other dimensions differ"


@implements(torch.cat, (Format,), when=takes_cat)
def cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Join tensors along a dimension: sparse ones in the first one's format; with a dense one among them, dense."""
    if not all(isinstance(t, SparseTensor) for t in tensors):
        return torch.cat([t.to_dense() if isinstance(t, SparseTensor) else t for t in tensors], dim)
    first: SparseTensor = tensors[0]  # type: ignore[assignment]
    shape = list(first._dense_shape)
    dim = dim_of(dim, len(shape))
    shape[dim] = sum(shape_of(t)[dim] for t in tensors)
    keys, values, offset = [], [], 0
    for t in tensors:
        coords, v = coords_of(t)  # type: ignore[arg-type]
        coords[dim] = coords[dim] + offset
        keys.append(ravel(coords, shape))
        values.append(v)
        offset += shape_of(t)[dim]
    return from_entries(torch.cat(keys), torch.cat(values), shape, first.format.general())


def _takes_stack(tensors: Sequence[Tensor], dim: int = 0) -> str | None:
    if not tensors or not all(isinstance(t, SparseTensor) for t in tensors):
        return _SOME_DENSE
    return None if all(shape_of(t) == shape_of(tensors[0]) for t in tensors) else "the shapes differ"


@implements(torch.stack, (Format,), when=_takes_stack)
def stack(tensors: Sequence[SparseTensor], dim: int = 0) -> Any:
    """Join sparse tensors along a new dimension."""
    return cat([unsqueeze(t, dim) for t in tensors], dim)


def _stacked(name: str, raise_: Callable[[Any], Tensor], dim: Callable[[int], int]) -> None:
    """Register torch.hstack and its like: cat of tensors that are first given more dimensions."""

    def guard(tensors: Sequence[Tensor]) -> str | None:
        if not tensors or not all(isinstance(t, SparseTensor) for t in tensors):
            return _SOME_DENSE
        shapes = [_raised_shape(name, shape_of(t)) for t in tensors]
        at = dim(len(shapes[0]))
        rest = [[s for d, s in enumerate(shape) if d != at] for shape in shapes]
        return None if all(o == rest[0] for o in rest) else "the other dimensions differ"

    def run(tensors: Sequence[Tensor]) -> Any:
        more = [raise_(t) for t in tensors]
        return cat(more, dim(len(shape_of(more[0]))))

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=guard)(run)


def _raised_shape(name: str, shape: Sequence[int]) -> tuple[int, ...]:
    if name == "column_stack":
        return tuple(shape) if len(shape) > 1 else (math.prod(shape), 1)
    ndim = {"hstack": 1, "vstack": 2, "dstack": 3}[name]
    if ndim == 3 and len(shape) < 3:
        return (*((1,) * (2 - len(shape))), *shape, 1)
    return (1,) * (ndim - len(shape)) + tuple(shape)


def _as_column(input: SparseTensor) -> SparseTensor:
    shape = input._dense_shape
    return input if len(shape) > 1 else reshape(input, (shape.numel(), 1))


_stacked("hstack", raised(1), lambda ndim: 0 if ndim == 1 else 1)
_stacked("vstack", raised(2), lambda ndim: 0)
_stacked("dstack", raised(3), lambda ndim: 2)
_stacked("column_stack", _as_column, lambda ndim: 1)


# -- repeating


def _expanded_shape(have: Sequence[int], wanted: Sequence[Any]) -> tuple[int, ...] | None:
    """Return the shape to which one expands, -1 written out; None if it doesn't (torch's own error then)."""
    lead = len(wanted) - len(have)
    if lead < 0 or not all(isinstance(w, int) for w in wanted) or any(w < 0 for w in wanted[:lead]):
        return None
    pairs = list(zip(wanted[lead:], have, strict=True))
    if any(w not in (-1, h) and h != 1 for w, h in pairs):
        return None
    return (*wanted[:lead], *(h if w == -1 else w for w, h in pairs))


def takes_expand(input: SparseTensor, *sizes: Any, implicit: bool = False) -> str | None:
    """Guard of expand."""
    fits = _expanded_shape(input._dense_shape, sizes_of(sizes)) is not None
    return None if fits else "the shape doesn't expand to these sizes"


@implements("expand", (Format,), when=takes_expand)
def expand(input: SparseTensor, *sizes: Any, implicit: bool = False) -> Any:
    """Repeat along dimensions of size 1 and new leading ones; every copy of an entry is an entry."""
    have = tuple(input._dense_shape)
    target = _expanded_shape(have, sizes_of(sizes))
    assert target is not None
    if target == have:
        return build(values_of(input), input.structure)
    source = reshape(input, (1,) * (len(target) - len(have)) + have)
    return _repeated(source, [t if s == 1 else 1 for t, s in zip(target, source._dense_shape, strict=True)])


def _repeated(input: SparseTensor, repeats: Sequence[int]) -> Tensor:
    """Lay copies of a tensor side by side: ``repeats`` of them along each dimension."""
    coords, values = coords_of(input)
    copies = math.prod(repeats)
    which = torch.arange(copies, device=values.device)
    moved: list[Tensor] = []
    for coord, size, count in zip(reversed(coords), reversed(input._dense_shape), reversed(repeats), strict=True):
        moved.insert(0, ((which % max(count, 1) * size)[:, None] + coord).reshape(-1))
        which = which // max(count, 1)
    shape = tuple(s * r for s, r in zip(input._dense_shape, repeats, strict=True))
    return from_entries(ravel(moved, shape), values.repeat(copies), shape, input.format.general())


def _takes_broadcast_to(input: SparseTensor, size: Sequence[int]) -> str | None:
    return "a size is -1" if -1 in size else takes_expand(input, size)


@implements(torch.broadcast_to, (Format,), when=_takes_broadcast_to)
def broadcast_to(input: SparseTensor, size: Sequence[int]) -> Any:
    """Repeat a tensor to a shape."""
    return expand(input, size)


def _takes_expand_as(input: Tensor, other: Tensor) -> str | None:
    return takes_expand(input, tuple(shape_of(other))) if isinstance(input, SparseTensor) else None


@implements("expand_as", (Format, Format), when=_takes_expand_as)
def expand_as(input: Tensor, other: Tensor) -> Any:
    """Repeat a tensor to the shape of another."""
    shape = tuple(shape_of(other))
    return expand(input, shape) if isinstance(input, SparseTensor) else input.expand(shape)


def _takes_repeat(input: SparseTensor, *sizes: Any, repeats: Any = None) -> str | None:
    counts = sizes_of(sizes) if repeats is None else tuple(repeats)
    if len(counts) < len(input._dense_shape) or not counts:
        return "there are fewer counts than dimensions"
    return "a count is no natural number" if any(not isinstance(c, int) or c < 0 for c in counts) else None


@implements("repeat", (Format,), when=_takes_repeat)
def repeat(input: SparseTensor, *sizes: Any, repeats: Any = None) -> Any:
    """Repeat along every dimension."""
    counts = sizes_of(sizes) if repeats is None else tuple(repeats)
    have = tuple(input._dense_shape)
    return _repeated(reshape(input, (1,) * (len(counts) - len(have)) + have), counts)


def _tiles(input: SparseTensor, args: tuple[Any, ...], dims: Any) -> tuple[Any, ...]:
    counts = sizes_of(args) if dims is None else tuple(dims)
    return (1,) * (len(input._dense_shape) - len(counts)) + tuple(counts)


def _takes_tile(input: SparseTensor, *args: Any, dims: Any = None) -> str | None:
    return _takes_repeat(input, *_tiles(input, args, dims))


@implements(torch.tile, (Format,), when=_takes_tile)
def tile(input: SparseTensor, *args: Any, dims: Any = None) -> Any:
    """Repeat along the last dimensions."""
    return repeat(input, *_tiles(input, args, dims))
