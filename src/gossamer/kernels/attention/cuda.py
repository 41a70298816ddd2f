"""Masked attention on a GPU: what the kernel takes, and its launches."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Structure
from gossamer.kernels.attention.tiles import WIDE, tiles_of
from gossamer.native.cuda import function, usable

ELEMENTS = {torch.float16: 0, torch.bfloat16: 1}
_THREADS = 128
_PER_TILE = 64  # entries of 64 x 64 positions below which it is faster to walk single entries
_WIDEST, _HEADS = 128, 65535
_SPLITS, _EACH = 8, 8  # blocks that share the tiles of some queries, at most; tiles that each should have
_PARAMETERS = "P P P 6q P P P P P P P i i f"


def takes(q: Tensor, v: Tensor, structure: Structure, scale: float) -> str | None:
    """Say why the kernel does not compute attention of [heads, tokens, width]; None if it does."""
    if q.device.type != "cuda" or not _has_tensor_cores(q.get_device()):
        return "there is no GPU with the instructions that it needs"
    if q.shape[0] > _HEADS:
        return f"{q.shape[0]:,} heads are more than the {_HEADS:,} of a launch"
    return refusal(q.dtype, q.shape[-1], v.shape[-1], scale) or few_entries(structure, high(q.shape[-1]))


@lru_cache(maxsize=16)
def _has_tensor_cores(device: int) -> bool:
    return usable() and torch.cuda.get_device_capability(device) >= (8, 0)


def refusal(dtype: torch.dtype, width: int, values: int, scale: float) -> str | None:
    """Say why the kernel does not take these; None if it does.

    Examples
    --------
    >>> import torch
    >>> refusal(torch.bfloat16, 64, 64, 0.125), refusal(torch.float32, 64, 64, 0.125)
    (None, 'values of float32 have no tensor cores')
    """
    if dtype not in ELEMENTS:
        return f"values of {str(dtype)[6:]} have no tensor cores"
    if width != values or width % 16 or not 0 < width <= _WIDEST:
        return f"a head has {width} columns and values have {values}: equal multiples of 16 up to {_WIDEST} are needed"
    return None if scale > 0 else "the scale is not positive"


def high(width: int) -> int:
    """Return how many queries a tile has: as many as leave room for the results in registers."""
    return 128 if width <= 64 else 64


def few_entries(structure: Structure, rows: int) -> str | None:
    """Say that most positions of the tiles of a mask are empty, if so."""
    number = tiles_of(structure, rows).number
    if structure.nnz * WIDE >= _PER_TILE * number * rows:
        return None
    return f"{number:,} tiles of {rows} x {WIDE} positions have {structure.nnz:,} entries: too few for each"


def attend(q: Tensor, k: Tensor, v: Tensor, structure: Structure, scale: float) -> Tensor:
    """Return softmax(scale q k^T) v over the entries of a mask, for [heads, tokens, width]; 0 where a row has none."""
    heads, queries, width = q.shape
    tiles = tiles_of(structure, high(width))
    q, k, v = _lines(q), _lines(k), _lines(v)
    out = q.new_empty(heads, queries, width)
    if not out.numel():
        return out
    device, down = q.get_device(), tiles.first.numel() - 1
    splits = _splits(device, heads * down, tiles.number // down)
    attending, combining = _functions(device, q.dtype, width, splits > 1)
    rows = heads * queries
    # of each part: results, and behind them the largest score and the sum of the weights of each row
    part = q.new_empty(splits * rows * (width + 2) if splits > 1 else 0, dtype=torch.float32)
    tops = part.data_ptr() + 4 * splits * rows * width
    sums = tops + 4 * splits * rows
    attending(
        (down, splits, heads), _THREADS, q.data_ptr(), k.data_ptr(), v.data_ptr(),
        q.stride(1), q.stride(0), k.stride(1), k.stride(0), v.stride(1), v.stride(0),
        tiles.first.data_ptr(), tiles.column.data_ptr(), tiles.bits.data_ptr(), out.data_ptr(),
        part.data_ptr(), tops, sums, queries, k.shape[1], scale * _LOG2_E,
    )  # fmt: skip
    if splits > 1:
        grid = (-(-rows * width // (2 * _THREADS)), 1, 1)
        combining(grid, _THREADS, part.data_ptr(), tops, sums, out.data_ptr(), rows, splits)
    return out


_LOG2_E = math.log2(math.e)


@lru_cache(maxsize=64)
def _functions(device: int, dtype: torch.dtype, width: int, parts: bool) -> tuple[Any, Any]:
    """Return the kernel, and the one that combines results of parts."""
    options: dict[str, Any] = {"ELEMENT": ELEMENTS[dtype], "WIDTH": width, "HIGH": high(width) // 64}
    shared = 4 * WIDE * (2 * width + 16)
    one = function("attention.cu", "attend", device, _PARAMETERS, shared=shared, PARTS=int(parts), **options)
    return one, function("attention.cu", "combine", device, "P P P P q i", **options)


@lru_cache(maxsize=256)
def _splits(device: int, blocks: int, tiles: int) -> int:
    """Into how many blocks to divide the tiles of some queries: until all multiprocessors have as many as fit."""
    return max(1, min(2 * _multiprocessors(device) // blocks, _SPLITS, tiles // _EACH))


def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _lines(t: Tensor) -> Tensor:
    """Return a tensor whose rows begin at multiples of 16 bytes."""
    head, row, one = t.stride()
    if one == 1 and head % 8 == 0 and row % 8 == 0 and t.data_ptr() % 16 == 0:
        return t
    return t.clone(memory_format=torch.contiguous_format)
