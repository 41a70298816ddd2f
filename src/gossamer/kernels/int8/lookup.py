"""Any pattern as lookups: rows are the lanes, and each step looks four columns of each up in a window.

The windows overlap, so that a row that keeps more than its neighbours in one can take some of it in the next: the
steps of sixteen rows are then nearly full.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.int8.pack import sums_of
from gossamer.kernels.int8.weight import BLOCK, GROUP, LOOKUP, UNUSED, WINDOW, Rounded, Sizes, check_sizes, together
from gossamer.kernels.int8.windows import LINES_OF_TILE, Windows, plan, schedule


def lookup(weight: Rounded, mask: Tensor, *, tall: int = 1, wide: int = 1, windows: Windows | None = None) -> Tensor:
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
        By default those that :func:`gossamer.kernels.int8.windows.plan` finds best for this processor.

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
    tiles = -(-count // LINES_OF_TILE)
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
    padded = F.pad(weight.values, (0, -cols % wide, 0, kept.shape[0] * tall - rows)).view(
        kept.shape[0], tall, kept.shape[1], wide
    )
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
    return padded.view(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide).any(3).any(1)


def lane_of(unit: Tensor, tall: int) -> Tensor:
    """Return the lane of a unit of its group: as it is, or for four rows so that their sums unfold by shuffles.

    Examples
    --------
    >>> import torch
    >>> lane_of(torch.arange(6), 4).tolist()
    [0, 4, 8, 12, 1, 5]
    """
    return unit % 4 * 4 + unit // 4 if tall == 4 else unit


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
