"""V:N:M of a whole model in one launch: blocks of rows share 4 of every m columns, and each row keeps 2 of them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Literal

import torch
from torch import Tensor

from gossamer.kernels.gpu import ELEMENTS
from gossamer.native.cuda import function

_MOST = 64  # arrays of a launch: choose_shared.cu has a table of them
_THREADS = 256
_TILE = 16384  # bytes of rows in shared memory


def can(m: int) -> bool:
    """Is there a kernel for groups of m columns? Above 32, trying all sets of 4 takes too long; 4 is a matter of n:m.

    Examples
    --------
    >>> can(4), can(5), can(32), can(33)
    (False, True, True, False)
    """
    return 4 < m <= 32


def launch(
    some: Sequence[tuple[Tensor, Tensor, Tensor]], rows: int | Literal["all"], m: int, infinity: int, wrong: Tensor
) -> None:
    """Choose in up to 64 matrices of a type; NaN sets a flag, and leaves all groups of m that share its columns.

    Parameters
    ----------
    some
        All weights, where the sparse ones are written, and where the mask is.
    rows, m
        That share columns; of a group.
    infinity
        Its bits: those of NaN are above.
    wrong
        An int32 on the device, set to 1 if there is a NaN.
    """
    kind, device = some[0][0].dtype, wrong.get_device()
    table, units = bytearray(), 1
    columns: list[list[int]] = [[], [], [], [], [], []]
    for dense, sparse, mask in some:
        height = len(dense) if rows == "all" else min(rows, len(dense))
        groups = dense.shape[1] // m
        entry = (dense.data_ptr(), sparse.data_ptr(), mask.data_ptr(), len(dense), groups, max(height, 1))
        for column, value in zip(columns, entry, strict=True):
            column.append(value)
        units = max(units, -(-len(dense) // max(height, 1)) * groups)
    for column, fill in zip(columns, (0, 0, 0, 0, 0, 1), strict=True):
        table += struct.pack(f"{_MOST}Q", *column, *[fill] * (_MOST - len(column)))
    chunk, size = _chunk(m), max(kind.itemsize, 4)
    items = _items(m, wrong.device)
    run = function(
        "choose_shared.cu", "choose_shared", device, f"{len(table)}s P {'HIQ'[kind.itemsize // 4]} P",
        shared=_shared_bytes(m, size), ITEM=kind.itemsize, ELEMENT=ELEMENTS.get(kind, 2), GROUP=m, CHUNK=chunk,
        ITEMS=len(items),
    )  # fmt: skip
    run((min(units, 2**20), len(some), 1), _THREADS, bytes(table), items.data_ptr(), infinity, wrong.data_ptr())


def _chunk(m: int) -> int:
    """Neighbouring columns that a thread adds to three others. Larger chunks are read faster, but try more columns that
    belong to no set."""
    return 4 if m <= 12 else 8


def _shared_bytes(m: int, size: int) -> int:
    """Bytes of shared memory: rows, a sum for each set that a thread tries, and the best of each thread."""
    chunk = _chunk(m)
    line = -(-m // chunk) * chunk * size
    return _TILE // line * line + _THREADS * (chunk * size + size + 4) + 16


def items_of(m: int, chunk: int) -> list[int]:
    """Sets of 4 of m columns: four bytes i, j, k, l for three columns and a fourth from l to l + chunk - 1.

    Examples
    --------
    >>> [hex(item) for item in items_of(5, 4)]
    ['0x10200', '0x10204', '0x10304', '0x20304', '0x1020304']
    """
    return [
        i << 24 | j << 16 | k << 8 | first
        for i, j, k in combinations(range(m - 1), 3)
        for first in range((k + 1) // chunk * chunk, m, chunk)
    ]


@lru_cache(maxsize=64)
def _items(m: int, device: torch.device) -> Tensor:
    return torch.tensor(items_of(m, _chunk(m)), dtype=torch.int32, device=device)
