"""Any pattern as lookups: rows are the lanes, and each step looks four columns of each up in a window.

The windows overlap, so that a row that keeps more than its neighbours in one can take some of it in the next: the
steps of sixteen rows are then nearly full. :func:`plan` chooses how far they overlap.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.int8.pack import sums_of
from gossamer.kernels.int8.weight import BLOCK, GROUP, LOOKUP, UNUSED, WINDOW, Rounded, Sizes, check_sizes, together, window_count

_LINES = 24  # windows of a tile: 24 KB for 16 tokens


class Windows(NamedTuple):
    """Columns from the beginning of one window to the next, and of a window."""

    stride: int = 32
    window: int = WINDOW


def lookup(
    weight: Rounded, mask: Tensor, *, tall: int = 1, wide: int = 1, windows: Windows | None = None
) -> Tensor:
    """Return a weight of any pattern.

    Parameters
    ----------
    weight
        The numbers; those where ``mask`` is False must be 0.
    mask
        Which positions are kept.
    tall, wide
        4 where every four rows keep the same columns (blocks of 4x1), or every four columns are kept together (1x4),
        else 1. Any mask is taken: a block is stored where one of its positions is kept.
    windows
        By default those of :func:`plan`.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.unpack import unpack
    >>> from gossamer.kernels.int8.weight import parts, rounded
    >>> w = torch.eye(3, 100)
    >>> packed = lookup(rounded(w), w != 0)
    >>> parts(packed).crd[:9].tolist(), unpack(packed).nonzero().tolist()
    ([0, 255, 255, 255, 1, 255, 255, 255, 2], [[0, 0], [1, 1], [2, 2]])
    """
    rows, cols = mask.shape
    kept = units_of(mask, tall, wide)
    stride, window = windows or plan(kept, tall, wide)
    check_sizes(Sizes(LOOKUP, rows, cols, 1, stride, tall, wide, window))
    took, steps = schedule(kept, stride // wide, window // wide, 4 // wide)
    count = steps.shape[1]
    tiles = -(-count // _LINES)
    lines = -(-count // tiles)
    pos, first = _in_order(steps, tiles, lines, BLOCK // (GROUP * tall))
    unit, col = kept.nonzero(as_tuple=True)  # columns of blocks
    at = torch.arange(count).repeat(kept.shape[0]).repeat_interleave(took.reshape(-1))  # window of each, unit by unit
    rank = kept.cumsum(1)[unit, col] - 1 - (took.cumsum(1) - took)[unit, at]
    each = 4 // wide  # places of a unit in a step
    step, place = first[unit // GROUP, at] + rank // each, lane_of(unit % GROUP, tall) * each + rank % each
    total = int(pos[-1])
    crd = torch.full((total, WINDOW // wide), UNUSED, dtype=torch.uint8)
    crd[step, place] = (col - at * (stride // wide)).to(torch.uint8)
    padded = F.pad(weight.values, (0, -cols % wide, 0, kept.shape[0] * tall - rows)).view(-1, tall, kept.shape[1], wide)
    values = torch.zeros(total, tall, WINDOW // wide, wide, dtype=torch.int8)
    values[step, :, place] = padded[unit, :, col]
    line = torch.zeros(total, dtype=torch.uint8)
    line[step] = (at % lines).to(torch.uint8)
    sizes = Sizes(LOOKUP, rows, cols, lines, stride, tall, wide, window, total)
    return together(sizes, weight.scale, values, sums_of(weight), pos, crd, line)


def units_of(mask: Tensor, tall: int, wide: int = 1) -> Tensor:
    """Return which blocks are kept, a row for each unit of ``tall`` rows, filled up to a multiple of sixteen units.

    Examples
    --------
    >>> import torch
    >>> units_of(torch.eye(9, dtype=torch.bool), 1, 4)[[0, 5, 8, 9]].int().tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    """
    rows, cols = mask.shape
    padded = F.pad(mask, (0, -cols % wide, 0, -rows % (GROUP * tall)))
    return padded.view(-1, tall, padded.shape[1] // wide, wide).any(3).any(1)


def lane_of(unit: Tensor, tall: int) -> Tensor:
    """Return the lane of a unit of its group: as it is, or for four rows so that their sums unfold by shuffles.

    Examples
    --------
    >>> import torch
    >>> lane_of(torch.arange(6), 4).tolist()
    [0, 4, 8, 12, 1, 5]
    """
    return unit % 4 * 4 + unit // 4 if tall == 4 else unit


def schedule(kept: Tensor, stride: int, window: int, each: int = 4) -> tuple[Tensor, Tensor]:
    """Decide how many entries of each unit are taken in each window, and how many steps a group has there.

    A step takes up to ``each`` of every unit. A group makes as few steps as the entries need that no later window shows; the units that have less of these take
    entries of the rest of the window. No other choice has fewer steps.

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


def plan(kept: Tensor, tall: int = 1, wide: int = 1) -> Windows:
    """Choose windows by what they cost: fewer steps with much overlap, fewer lines of activations with little.

    Cycles of a Zen 4 and a token: 1.4 for a step, or 4.2 for one of four rows; 3.5 for a line; 3 for the sums of a
    group and tile. Counted on some of the groups.

    Examples
    --------
    >>> import torch
    >>> plan(torch.eye(10, dtype=torch.bool).repeat(16, 77)[:160])
    Windows(stride=40, window=64)
    """
    groups = kept.shape[0] // GROUP
    some = kept.view(groups, GROUP, -1)[:: max(groups // 16, 1)].reshape(-1, kept.shape[1])

    def cost(windows: Windows) -> float:
        stride, window = windows.stride // wide, windows.window // wide
        steps = int(schedule(some, stride, window, 4 // wide)[1].sum()) * kept.shape[0] / max(some.shape[0], 1)
        lines = window_count(kept.shape[1], stride, window)
        return (1.4 if tall == 1 else 4.2) * steps + 3.5 * lines + 3 * tall * groups * (-(-lines // _LINES) - 1)

    return min((Windows(stride) for stride in (64, 60, 56, 48, 40, 32, 24, 16)), key=cost)


def _in_order(steps: Tensor, tiles: int, lines: int, held: int) -> tuple[Tensor, Tensor]:
    """Starts of the groups in the order of the loops, and the first step of each group and window."""
    groups, count = steps.shape
    in_tiles = F.pad(steps, (0, tiles * lines - count)).view(groups, tiles, lines)
    ranks = torch.arange(groups * tiles).view(groups, tiles)  # of each group and tile among those
    blocks = [block.t().reshape(-1) for block in ranks.split(held)]
    order = torch.cat(blocks) if blocks else ranks.view(-1)
    flat = in_tiles.view(-1, lines)[order]
    starts = F.pad(flat.sum(1).cumsum(0), (1, 0))
    first = torch.empty_like(flat)
    first[order] = starts[:-1, None] + flat.cumsum(1) - flat
    return starts.int(), first.view(groups, tiles * lines)[:, :count]
