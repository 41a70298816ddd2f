"""Entries that move: reversed, rolled, padded, on and off diagonals; and forms that promise a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gossamer.core.join import from_entries, values_of
from gossamer.core.table import Guard, implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.keys import ravel
from gossamer.ops import index, shape
from gossamer.ops.join import expand, takes_expand
from gossamer.ops.shape import coords_of, dim_of, dims_of, flatten, reshape, sizes_of

_NO_DIM = "there is no dimension"


def _takes_flip(input: SparseTensor, *args: Any, dims: Any = None) -> str | None:
    ndim = len(input._dense_shape)
    turned = dims_of(sizes_of(args) if dims is None else dims, ndim)
    return None if ndim and len(set(turned)) == len(turned) else "a dimension is named twice, or there is none"


@implements(torch.flip, (Format,), when=_takes_flip)
def flip(input: SparseTensor, *args: Any, dims: Any = None) -> Any:
    """Reverse the order along dimensions."""
    sizes = input._dense_shape
    turned = dims_of(sizes_of(args) if dims is None else dims, len(sizes))
    coords, values = coords_of(input)
    coords = [sizes[d] - 1 - c if d in turned else c for d, c in enumerate(coords)]
    return from_entries(ravel(coords, sizes), values, sizes, input.format.general())


def _flipped(name: str, dim: int) -> None:
    def guard(input: SparseTensor) -> str | None:
        return None if len(input._dense_shape) > dim else "it has too few dimensions"

    def run(input: SparseTensor) -> Any:
        return flip(input, dim)

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=guard)(run)


_flipped("fliplr", 1)
_flipped("flipud", 0)


def _takes_roll(input: SparseTensor, shifts: Any, dims: Any = None) -> str | None:
    count = 1 if isinstance(shifts, int) else len(shifts)
    if not input._dense_shape:
        return _NO_DIM
    flat = dims is None or (not isinstance(dims, int) and not dims)
    wanted = 1 if flat or isinstance(dims, int) else len(dims)
    return None if count == wanted else "there are not as many shifts as dimensions"


@implements(torch.roll, (Format,), when=_takes_roll)
def roll(input: SparseTensor, shifts: Any, dims: Any = None) -> Any:
    """Move entries along dimensions, round the end."""
    sizes = input._dense_shape
    if dims is None or (not isinstance(dims, int) and not dims):
        return reshape(roll(flatten(input), shifts, 0), tuple(sizes))
    coords, values = coords_of(input)
    shifts = (shifts,) if isinstance(shifts, int) else tuple(shifts)
    for d, shift in zip(dims_of(dims, len(sizes)), shifts, strict=True):
        coords[d] = (coords[d] + shift) % max(sizes[d], 1)
    return from_entries(ravel(coords, sizes), values, sizes, input.format.general())


# -- padding


def _takes_pad(
    input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> str | None:
    if mode != "constant" or value not in (None, 0):
        return "it is padded with something other than zeros"
    if len(pad) % 2 or len(pad) // 2 > len(input._dense_shape) or not input._dense_shape:
        return "pad has another length"
    return "something is cut off" if any(p < 0 for p in pad) else None


@implements(torch.nn.functional.pad, (Format,), when=_takes_pad)
def pad(input: SparseTensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Any:
    """Add zeros around a tensor."""
    rest = [0] * (len(input._dense_shape) - len(pad) // 2)
    before, after = rest + list(pad[-2::-2]), rest + list(pad[::-2])
    coords, values = coords_of(input)
    sizes = tuple(s + b + a for s, b, a in zip(input._dense_shape, before, after, strict=True))
    keys = ravel([c + b for c, b in zip(coords, before, strict=True)], sizes)
    return from_entries(keys, values, sizes, input.format.general())


def _takes_constant_pad(input: SparseTensor, pad: Sequence[int], value: float = 0) -> str | None:
    return _takes_pad(input, pad, "constant", value)


_pad = pad


@implements(torch.constant_pad_nd, (Format,), when=_takes_constant_pad)
def constant_pad_nd(input: SparseTensor, pad: Sequence[int], value: float = 0) -> Any:
    """Add zeros around a tensor."""
    return _pad(input, pad)


# -- diagonals and triangles


def takes_diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> str | None:
    """Guard of diagonal."""
    ndim = len(input._dense_shape)
    if ndim < 2:
        return "it has fewer than two dimensions"
    return "it is one dimension, not two" if dim_of(dim1, ndim) == dim_of(dim2, ndim) else None


@implements(torch.diagonal, (Format,), when=takes_diagonal)
def diagonal(input: SparseTensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Take a diagonal of two dimensions; it becomes the last one."""
    sizes = input._dense_shape
    a, b = dim_of(dim1, len(sizes)), dim_of(dim2, len(sizes))
    coords, values = coords_of(input)
    keep = coords[b] - coords[a] == offset
    rest = [d for d in range(len(sizes)) if d not in (a, b)]
    rows, cols = sizes[a], sizes[b]
    length = max(min(rows, cols - offset) if offset >= 0 else min(rows + offset, cols), 0)
    target = (*(sizes[d] for d in rest), length)
    moved = [coords[d][keep] for d in rest] + [coords[a if offset >= 0 else b][keep]]
    return from_entries(ravel(moved, target), values[keep], target, input.format.general())


def _takes_diag(input: SparseTensor, diagonal: int = 0) -> str | None:
    return None if len(input._dense_shape) in (1, 2) else "it is neither a vector nor a matrix"


_diagonal = diagonal


@implements(torch.diag, (Format,), when=_takes_diag)
def diag(input: SparseTensor, diagonal: int = 0) -> Any:
    """Take the diagonal of a matrix, or make a matrix of a diagonal."""
    if len(input._dense_shape) == 2:
        return _diagonal(input, diagonal)
    coords, values = coords_of(input)
    size = input._dense_shape[0] + abs(diagonal)
    row, col = coords[0] + max(-diagonal, 0), coords[0] + max(diagonal, 0)
    return from_entries(row * size + col, values, (size, size), input.format.general())


def _takes_trace(input: SparseTensor) -> str | None:
    return None if len(input._dense_shape) == 2 else "it is not a matrix"


@implements(torch.trace, (Format,), when=_takes_trace)
def trace(input: SparseTensor) -> Any:
    """Sum of the diagonal of a matrix."""
    return values_of(diagonal(input)).sum()


def _takes_triangle(input: SparseTensor, diagonal: int = 0) -> str | None:
    return None if len(input._dense_shape) >= 2 else "it has fewer than two dimensions"


def _triangle(name: str, lower: bool) -> None:
    def run(input: SparseTensor, diagonal: int = 0) -> Any:
        coords, values = coords_of(input)
        offset = coords[-1] - coords[-2]
        keep = offset <= diagonal if lower else offset >= diagonal
        keys = ravel([c[keep] for c in coords], input._dense_shape)
        return from_entries(keys, values[keep], input._dense_shape, input.format.general())

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=_takes_triangle)(run)


_triangle("tril", lower=True)
_triangle("triu", lower=False)


# -- forms that promise a copy


def _copied(name: str, function: Callable[..., Any], when: Guard | None) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return tuple(o.clone() for o in out) if isinstance(out, tuple) else out.clone()

    run.__name__ = run.__qualname__ = name
    implements(name, (Format,), when=when)(run)


_COPIES: dict[str, tuple[Callable[..., Any], Guard | None]] = {
    "t_copy": (shape.t, shape.takes_t),
    "transpose_copy": (shape.transpose, None),
    "permute_copy": (shape.permute, shape.takes_permute),
    "view_copy": (shape.reshape, shape.takes_reshape),
    "squeeze_copy": (shape.squeeze, None),
    "unsqueeze_copy": (shape.unsqueeze, None),
    "unbind_copy": (index.unbind, index.takes_dims),
    "expand_copy": (expand, takes_expand),
    "split_with_sizes_copy": (index.split, index.takes_split),
    "unsafe_split": (index.split, index.takes_split),
    "unsafe_chunk": (index.chunk, index.takes_chunk),
    "diagonal_copy": (diagonal, takes_diagonal),
    "alias_copy": (lambda input: input, None),
}
for _name, (_function, _when) in _COPIES.items():
    _copied(_name, _function, _when)
