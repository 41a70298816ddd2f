"""Transposes and views: the same entries under other numbers. The result stays sparse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import build, entries_of, from_entries, values_of
from gossamer.core.look import shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format, Masked, Structure
from gossamer.formats.keys import ravel, unravel

_SIZES = "the sizes don't fit the shape"


def coords_of(tensor: SparseTensor) -> tuple[list[Tensor], Tensor]:
    """Coordinates and values of the stored entries."""
    keys, values = entries_of(tensor)
    return unravel(keys, tuple(tensor._dense_shape) or (1,)), values


def dim_of(dim: int, ndim: int) -> int:
    """Return a dimension counted from 0, or raise torch's error."""
    if not -max(ndim, 1) <= dim < max(ndim, 1):
        raise IndexError(f"Dimension out of range (expected to be in range of [{-ndim}, {ndim - 1}], but got {dim})")
    return dim % max(ndim, 1)


def dims_of(dims: Any, ndim: int) -> list[int]:
    """Return one dimension or several as a list."""
    return [dim_of(d, ndim) for d in ([dims] if isinstance(dims, int) else dims)]


def sizes_of(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sizes or dimensions given one by one, or as one sequence."""
    return tuple(args[0]) if len(args) == 1 and isinstance(args[0], (tuple, list)) else args


# -- transposes


def takes_permute(input: SparseTensor, *args: Any, dims: Any = None) -> str | None:
    """Guard of permute; torch's own error comes from the dense path."""
    ndim = len(input._dense_shape)
    order = [dim_of(d, ndim) for d in (sizes_of(args) if dims is None else dims)]
    return None if sorted(order) == list(range(ndim)) else "not every dimension is named once"


@implements(torch.permute, (Format,), when=takes_permute)
def permute(input: SparseTensor, *args: Any, dims: Any = None) -> SparseTensor:
    """Reorder the dimensions; of a matrix in a format that reads both ways, without moving a value."""
    structure = input.structure
    order = [dim_of(d, len(structure.shape)) for d in (sizes_of(args) if dims is None else dims)]
    shape = tuple(structure.shape[d] for d in order)
    if order == list(range(len(order))):
        return build(values_of(input), structure)
    if isinstance(structure.format, Masked):
        (name, mask), *_ = structure.arrays.items()
        mask = mask.view(structure.value_shape).permute(order)
        moved = Structure(structure.format, shape, {name: mask}, structure.device)
        return build(values_of(input).permute(order), moved)
    flipped = structure.format.transposed() if len(order) == 2 else None
    if flipped is not None:
        return build(values_of(input), Structure(flipped, shape, structure.arrays, structure.device))
    coords, values = coords_of(input)
    moved_keys = ravel([coords[d] for d in order], shape)
    return from_entries(moved_keys, values, shape, structure.format.general())  # type: ignore[return-value]


@implements(torch.transpose, (Format,))
def transpose(input: SparseTensor, dim0: int, dim1: int) -> SparseTensor:
    """Exchange two dimensions."""
    ndim = len(input._dense_shape)
    a, b = dim_of(dim0, ndim), dim_of(dim1, ndim)
    order = list(range(ndim))
    if order:
        order[a], order[b] = order[b], order[a]
    return permute(input, order)


def takes_t(input: SparseTensor) -> str | None:
    """Guard of t."""
    return None if len(input._dense_shape) <= 2 else "it has more than two dimensions"


def t(input: SparseTensor) -> SparseTensor:
    """Transpose a matrix; a vector is itself."""
    return permute(input, list(range(len(input._dense_shape)))[::-1])


def _takes_adjoint(input: SparseTensor) -> str | None:
    if input._values.dtype.is_complex:
        return "complex values are conjugated too"
    return None if len(input._dense_shape) >= 2 else "it has fewer than two dimensions"


def adjoint(input: SparseTensor) -> SparseTensor:
    """Exchange the last two dimensions."""
    return transpose(input, -1, -2)


for _name in ("t", "T.get", "numpy_T"):
    implements(_name, (Format,), when=takes_t)(t)
for _name in ("mT.get", "adjoint", "mH.get"):
    implements(_name, (Format,), when=_takes_adjoint)(adjoint)


def _takes_movedim(input: SparseTensor, source: Any, destination: Any) -> str | None:
    ndim = len(input._dense_shape)
    taken, put = dims_of(source, ndim), dims_of(destination, ndim)
    fits = ndim and len(set(taken)) == len(taken) == len(set(put)) == len(put)
    return None if fits else "a dimension is named twice, or there is none"


@implements(torch.movedim, (Format,), when=_takes_movedim)
def movedim(input: SparseTensor, source: Any, destination: Any) -> SparseTensor:
    """Move dimensions to other places."""
    ndim = len(input._dense_shape)
    taken, put = dims_of(source, ndim), dims_of(destination, ndim)
    rest = iter(d for d in range(ndim) if d not in taken)
    places = dict(zip(put, taken, strict=True))
    return permute(input, [places[i] if i in places else next(rest) for i in range(ndim)])


# -- views


def _target(sizes: Sequence[Any], total: int) -> tuple[int, ...] | None:
    """Return the shape that sizes with a -1 stand for; None if there is none."""
    known = math.prod(s for s in sizes if s != -1)
    if sizes.count(-1) > 1 or (-1 in sizes and (known == 0 or total % known)) or (-1 not in sizes and known != total):
        return None
    return tuple(total // known if s == -1 else s for s in sizes)


def takes_reshape(input: SparseTensor, *args: Any, shape: Any = None) -> str | None:
    """Guard of reshape."""
    sizes = sizes_of(args) if shape is None else tuple(shape)
    if not all(isinstance(s, int) for s in sizes):
        return "the view has another type"
    return _SIZES if _target(sizes, input._dense_shape.numel()) is None else None


@implements(torch.reshape, (Format,), when=takes_reshape)
def reshape(input: SparseTensor, *args: Any, shape: Any = None) -> SparseTensor:
    """Give the same entries another shape."""
    target = _target(sizes_of(args) if shape is None else tuple(shape), input._dense_shape.numel())
    assert target is not None
    if target == tuple(input._dense_shape):
        return build(values_of(input), input.structure)
    if isinstance(input.format, Masked):
        (mask,) = input.structure.arrays.values()
        name = f"mask{max(len(target), 1) - 1}"
        structure = Structure(Masked(), target, {name: mask.reshape(target or (1,))}, input._values.device)
        return build(values_of(input).reshape(structure.value_shape), structure)
    keys, values = entries_of(input)
    return from_entries(keys, values, target, input.format.general())  # type: ignore[return-value]


def _takes_flatten(input: SparseTensor, start_dim: int = 0, end_dim: int = -1) -> str | None:
    ndim = len(input._dense_shape)
    return None if dim_of(start_dim, ndim) <= dim_of(end_dim, ndim) else "start_dim comes after end_dim"


@implements(torch.flatten, (Format,), when=_takes_flatten)
def flatten(input: SparseTensor, start_dim: int = 0, end_dim: int = -1) -> SparseTensor:
    """Join neighbouring dimensions into one."""
    shape = tuple(input._dense_shape)
    start, end = dim_of(start_dim, len(shape)), dim_of(end_dim, len(shape))
    return reshape(input, (*shape[:start], math.prod(shape[start : end + 1]), *shape[end + 1 :]))


@implements("ravel", (Format,))
def ravel_(input: SparseTensor) -> SparseTensor:
    """Join all dimensions into one."""
    return flatten(input)


@implements(torch.unsqueeze, (Format,))
def unsqueeze(input: SparseTensor, dim: int) -> SparseTensor:
    """Add a dimension of size 1."""
    shape = tuple(input._dense_shape)
    at = dim_of(dim, len(shape) + 1)
    return reshape(input, (*shape[:at], 1, *shape[at:]))


@implements(torch.squeeze, (Format,))
def squeeze(input: SparseTensor, dim: int | Sequence[int] | None = None) -> SparseTensor:
    """Drop dimensions of size 1."""
    ndim = len(input._dense_shape)
    gone = set(dims_of(range(ndim) if dim is None else dim, ndim))
    return reshape(input, tuple(s for d, s in enumerate(input._dense_shape) if s != 1 or d not in gone))


def _takes_unflatten(input: SparseTensor, dim: int, sizes: Sequence[int]) -> str | None:
    shape = tuple(input._dense_shape)
    if not shape or not isinstance(sizes, (tuple, list)) or not sizes:
        return "the sizes are no list, or there is no dimension"
    return _SIZES if _target(tuple(sizes), shape[dim_of(dim, len(shape))]) is None else None


@implements("unflatten", (Format,), when=_takes_unflatten)
def unflatten(input: SparseTensor, dim: int, sizes: Sequence[int]) -> SparseTensor:
    """Make several dimensions of one."""
    shape = tuple(input._dense_shape)
    at = dim_of(dim, len(shape))
    target = _target(tuple(sizes), shape[at])
    assert target is not None
    return reshape(input, (*shape[:at], *target, *shape[at + 1 :]))


def _takes_view_as(input: Tensor, other: Tensor) -> str | None:
    return None if shape_of(input).numel() == shape_of(other).numel() else _SIZES


@implements("view_as", (Format, Format), when=_takes_view_as)
def view_as(input: Tensor, other: Tensor) -> Tensor:
    """Give a tensor the shape of another."""
    return reshape(input, tuple(other.shape)) if isinstance(input, SparseTensor) else input.view(other.shape)


def _takes_raised(input: Tensor) -> str | None:
    return None if isinstance(input, SparseTensor) else "several tensors are given"


def raised(ndim: int) -> Any:
    """Return torch.atleast_1d, 2d or 3d of one tensor."""

    def run(input: SparseTensor) -> SparseTensor:
        shape = tuple(input._dense_shape)
        if len(shape) >= ndim:
            return input
        if ndim == 3 and len(shape) == 2:
            return reshape(input, (*shape, 1))
        if ndim == 3 and len(shape) == 1:
            return reshape(input, (1, *shape, 1))
        return reshape(input, (1,) * (ndim - len(shape)) + shape)

    run.__name__ = run.__qualname__ = f"atleast_{ndim}d"
    return run


for _ndim in (1, 2, 3):
    implements(f"atleast_{_ndim}d", (Format,), when=_takes_raised)(raised(_ndim))
