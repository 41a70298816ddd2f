"""The largest magnitudes of each matrix of a whole model, in few launches: masks and sparse weights from dense ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.native.cuda import function

MOST = 32  # arrays of a launch: choose_top.cu has a table of them
_THREADS, _DIGIT, _SPANS = 256, 11, 1024
_SPAN = 8192  # values that a block reads, at least


class Wanted(NamedTuple):
    """How many of the largest magnitudes of a matrix are kept; and a second number, with a mask of its own."""

    first: int
    second: int = 0
    wider: Tensor | None = None


class Array(NamedTuple):
    """All weights, where the sparse ones are written (None: nowhere), and where the mask is."""

    dense: Tensor
    sparse: Tensor | None
    mask: Tensor


def launch(arrays: Sequence[Array], wanted: Sequence[Wanted], infinity: int, wrong: Tensor, work: Tensor) -> None:
    """Choose in up to 32 matrices of a type; NaN sets a flag, and leaves its matrix as it is.

    Parameters
    ----------
    arrays, wanted
        The matrices, and how many of each; either all have a second number or none.
    infinity
        Its bits: those of NaN are above.
    wrong
        An int32 on the device, set to 1 if there is a NaN.
    work
        Bytes on the device, as many as :func:`work_bytes` says.
    """
    kind, device = arrays[0].dense.dtype, wrong.get_device()
    ranks = 1 if wanted[0].wider is None else 2
    table, most = _table(arrays, wanted)
    pointer, grid = f"{len(table)}s P", (most, len(arrays), 1)
    bits, macros = "HIQ"[kind.itemsize // 4], dict[str, Any](ITEM=kind.itemsize, ELEMENT=2, RANKS=ranks)
    shared = ranks * (4 * 2**_DIGIT + 24) + 4 * _THREADS + 16
    digits = function("choose_top.cu", "top_digits", device, f"{pointer} {bits} i", shared=shared, **macros)
    ties = function("choose_top.cu", "top_ties", device, pointer, shared=shared, **macros)
    write = function("choose_top.cu", "top_write", device, f"{pointer} P", shared=shared, **macros)
    work[: work_bytes(kind, ranks)].zero_()
    for number in range(_passes(kind)):
        digits(grid, _THREADS, table, work.data_ptr(), infinity, number)
    ties(grid, _THREADS, table, work.data_ptr())
    write(grid, _THREADS, table, work.data_ptr(), wrong.data_ptr())


def _table(arrays: Sequence[Array], wanted: Sequence[Wanted]) -> tuple[bytes, int]:
    """Return what the kernels know of the matrices, and the largest number of spans."""
    columns: list[list[int]] = [[] for _ in range(8)]
    most = 1
    for (dense, sparse, mask), (first, second, wider) in zip(arrays, wanted, strict=True):
        size = dense.numel()
        span = max(_SPAN, -(-size // (_SPANS * _THREADS)) * _THREADS)
        places = (dense, sparse, mask, wider)
        entry = [0 if one is None else one.data_ptr() for one in places]
        entry += [size, span, *(min(max(each, 0), size) for each in (first, second))]
        for column, value in zip(columns, entry, strict=True):
            column.append(value)
        most = max(most, -(-size // span))
    packed = (struct.pack(f"{MOST}Q", *column, *[0] * (MOST - len(column))) for column in columns)
    return b"".join(packed), most


def _passes(kind: torch.dtype) -> int:
    return -(-(kind.itemsize * 8 - 1) // _DIGIT)


def work_bytes(kind: torch.dtype, ranks: int) -> int:
    """How many bytes the kernels share: counts of digits, what is found from them, and counts of equal values.

    Examples
    --------
    >>> work_bytes(torch.float32, 1)
    919696
    """
    seen, found = _passes(kind) * MOST * ranks * 4 * 2**_DIGIT, (_passes(kind) + 1) * MOST * ranks * 16
    return seen + found + MOST * ranks * 4 * _SPANS + MOST * 4 + 16
