"""Windows of columns: how the entries of sixteen rows are spread over them, and which windows are best."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer import native
from gossamer.kernels.int8.weight import GROUP, WINDOW, window_count

#: Windows of a tile: 24 KB for 16 tokens.
LINES_OF_TILE = 24


class Windows(NamedTuple):
    """Columns from the beginning of one window to the next, and of a window."""

    stride: int = 32
    window: int = WINDOW


_STRIDES = {64: (64, 60, 56, 48, 40, 32, 24, 16), 32: (32, 28, 24, 20, 16, 8), 16: (16, 12, 8, 4)}
# Cycles of a step of a token, measured on Zen 4 for each instruction set, by the window that is looked up:
# steps of single columns; of single columns and four rows; of four columns.
_COSTS: dict[str, tuple[dict[int, float], dict[int, float], dict[int, float]]] = {
    "avx512vbmi": ({64: 1.4}, {64: 4.2}, {64: 1.4}),
    "avx512vnni": ({16: 2.6, 32: 4.2, 64: 8.2}, {16: 6.0, 64: 11.0}, {64: 1.4}),
    "avxvnni": ({16: 2.3, 32: 4.3, 64: 9.0}, {16: 10.9, 64: 16.9}, {64: 3.9}),
    "avx2": ({16: 5.0, 32: 6.7, 64: 10.4}, {16: 22.0, 64: 29.0}, {64: 7.9}),
    "baseline": ({64: 120.0}, {64: 216.0}, {64: 43.0}),
}
_COSTS["amx"] = _COSTS["avx512vbmi"]  # whose lookups it has
_LINE, _SUMS = 3.5, 3.0  # cycles of a line, and of the sums of sixteen rows between two tiles


def plan(kept: Tensor, tall: int = 1, wide: int = 1, isa: str | None = None) -> Windows:
    """Choose windows by what they cost: fewer steps with much overlap, fewer lines of activations with little.

    Parameters
    ----------
    kept
        Which blocks each unit keeps (:func:`gossamer.kernels.int8.lookup.units_of`); some of the groups are counted.
    tall, wide
        Rows and columns of a block.
    isa
        By default the instruction set of the kernels here. A weight runs on any, but another may prefer other windows.

    Examples
    --------
    >>> import torch
    >>> plan(torch.eye(10, dtype=torch.bool).repeat(16, 77), isa="avx512vbmi")
    Windows(stride=40, window=64)
    >>> plan(torch.eye(4, dtype=torch.bool).repeat(16, 77), isa="avx2")
    Windows(stride=16, window=16)
    """
    groups = kept.shape[0] // GROUP
    some = kept.view(groups, GROUP, kept.shape[1])[:: max(groups // 16, 1)].flatten(0, 1)
    costs = _COSTS[isa or native.int8_isa() or "avx512vbmi"][2 if wide == 4 else 1 if tall == 4 else 0]

    def cost(windows: Windows) -> float:
        stride, window = windows.stride // wide, windows.window // wide
        steps = int(schedule(some, stride, window, 4 // wide)[1].sum()) * kept.shape[0] / max(some.shape[0], 1)
        lines = window_count(kept.shape[1], stride, window)
        tiles = -(-lines // LINES_OF_TILE)
        each = costs[windows.window] * (tall if wide == 4 else 1)
        return each * steps + _LINE * lines + _SUMS * tall * groups * (tiles - 1)

    return min((Windows(stride, window) for window in costs for stride in _STRIDES[window]), key=cost)


def schedule(kept: Tensor, stride: int, window: int, each: int = 4) -> tuple[Tensor, Tensor]:
    """Decide how many entries of each unit are taken in each window, and how many steps a group has there.

    A step takes up to ``each`` of every unit. A group makes as few steps as the entries need that no later window
    shows; the units that have fewer of these take entries of the rest of the window. No other choice has fewer steps.

    Examples
    --------
    >>> import torch
    >>> kept = torch.zeros(16, 96, dtype=torch.bool)
    >>> kept[0, :8] = kept[1, 40:44] = True
    >>> took, steps = schedule(kept, 32, 64)
    >>> took[:2].tolist(), steps.tolist()
    ([[8, 0], [4, 0]], [[2, 0]])
    """
    units, cols = kept.shape
    count = window_count(cols, stride, window)
    seen = F.pad(kept.cumsum(1, dtype=torch.int32), (1, 0))  # entries before each column
    done = torch.zeros(units, dtype=torch.int32)
    took = torch.zeros(units, count, dtype=torch.int64)
    steps = torch.zeros(units // GROUP, count, dtype=torch.int64)
    for w in range(count):
        must = cols if w + 1 == count else (w + 1) * stride
        need = ((seen[:, must] - done).view(-1, GROUP).amax(1) + each - 1) // each
        need = need.clamp(min=0)
        here = torch.minimum(seen[:, min(w * stride + window, cols)] - done, each * need.repeat_interleave(GROUP))
        took[:, w], steps[:, w] = here, need
        done += here
    return took, steps
