"""From a matrix of int8 to what the kernels read, in its three kinds, and back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.int8.weight import DENSE, LINES, LOOKUP, Int8Weight, Rounded, check_cols

_GROUP = 16
_WINDOW = 64
_BLOCK = 768  # rows whose sums are kept between tiles
_LINES = 24  # windows of a tile of lookups: 24 KB for 16 tokens
_QUADS = 192  # columns of blocks of a tile of lines: 24 KB for 32 tokens
_ROWS = 128  # rows that lines sorts by length
_UNUSED = 255


def dense(weight: Rounded) -> Int8Weight:
    """Pack a matrix as it is.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> packed = dense(rounded(torch.eye(3, 5)))
    >>> packed.values.numel(), unpack(packed)[:, :3].tolist()
    (128, [[127, 0, 0], [0, 127, 0], [0, 0, 127]])
    """
    rows, cols = weight.values.shape
    check_cols(cols)
    padded = F.pad(weight.values, (0, -cols % 4, 0, -rows % _GROUP))
    values = padded.view(-1, _GROUP, padded.shape[1] // 4, 4).transpose(1, 2).reshape(-1)
    return Int8Weight(values, None, None, None, weight.scale, _sums(weight), DENSE, rows, cols)


def lookup(weight: Rounded, mask: Tensor, *, tall: int = 1, stride: int = 32, window: int = _WINDOW) -> Int8Weight:
    """Pack any pattern: rows are lanes that look their columns up in windows.

    Parameters
    ----------
    weight
        The numbers; those where ``mask`` is False must be 0.
    mask
        Which positions are kept.
    tall
        4 where every four rows keep the same columns (blocks of 4x1), else 1.
    stride, window
        Columns from one window to the next, and of a window; see :func:`gossamer.kernels.int8.choose.windows`.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = torch.eye(3, 100)
    >>> packed = lookup(rounded(w), w != 0)
    >>> packed.pos.tolist(), packed.crd[:9].tolist(), unpack(packed).nonzero().tolist()
    ([0, 1], [0, 255, 255, 255, 1, 255, 255, 255, 2], [[0, 0], [1, 1], [2, 2]])
    """
    rows, cols = mask.shape
    check_cols(cols)
    if tall not in (1, 4) or not 0 < stride <= window <= _WINDOW:
        raise ValueError(f"tall={tall} must be 1 or 4; 0 < stride={stride} <= window={window} <= {_WINDOW}")
    kept = units_of(mask, tall)
    took, steps = schedule(kept, stride, window)  # [units, windows], [groups, windows]
    groups, windows = steps.shape
    tiles = -(-windows // _LINES)
    lines = -(-windows // tiles)
    pos, first = _in_order(steps, tiles, lines, _BLOCK // (_GROUP * tall))
    unit, col = kept.nonzero(as_tuple=True)
    at = torch.arange(windows).repeat(kept.shape[0]).repeat_interleave(took.reshape(-1))  # window of each, unit by unit
    before = took.cumsum(1) - took
    rank = kept.cumsum(1)[unit, col] - 1 - before[unit, at]
    step = first[unit // _GROUP, at] + rank // 4
    place = lane_of(unit % _GROUP, tall) * 4 + rank % 4
    total = int(pos[-1])
    crd = torch.full((total, _WINDOW), _UNUSED, dtype=torch.uint8)
    crd[step, place] = (col - at * stride).to(torch.uint8)
    padded = F.pad(weight.values, (0, 0, 0, kept.shape[0] * tall - rows))
    values = torch.zeros(total, tall, _WINDOW, dtype=torch.int8)
    for i in range(tall):
        values[step, i, place] = padded[unit * tall + i, col]
    line = torch.zeros(total, dtype=torch.uint8)
    line[step] = (at % lines).to(torch.uint8)
    return Int8Weight(
        values.view(-1), pos, crd.view(-1), line, weight.scale, _sums(weight), LOOKUP, rows, cols, lines, stride, tall, window
    )


def units_of(mask: Tensor, tall: int) -> Tensor:
    """Return which columns each unit of ``tall`` rows keeps, the units filled up to a multiple of sixteen."""
    rows, cols = mask.shape
    return F.pad(mask, (0, 0, 0, -rows % (_GROUP * tall))).view(-1, tall, cols).any(1)


def lane_of(unit: Tensor, tall: int) -> Tensor:
    """Return the lane of a unit of its group: as it is, or for units of four rows so that their sums unfold by shuffles.

    Examples
    --------
    >>> import torch
    >>> lane_of(torch.arange(6), 4).tolist()
    [0, 4, 8, 12, 1, 5]
    """
    return unit % 4 * 4 + unit // 4 if tall == 4 else unit


def schedule(kept: Tensor, stride: int, window: int) -> tuple[Tensor, Tensor]:
    """Decide how many entries of each unit are taken in each window, and how many steps a group has there.

    A group makes as few steps as the entries need that no later window shows; the units that have less of these take
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
    windows = window_count(cols, stride, window)
    seen = F.pad(kept.cumsum(1, dtype=torch.int32), (1, 0))  # entries before each column
    done = torch.zeros(units, dtype=torch.int32)
    took = torch.zeros(units, windows, dtype=torch.int64)
    steps = torch.zeros(units // _GROUP, windows, dtype=torch.int64)
    for w in range(windows):
        must = cols if w + 1 == windows else (w + 1) * stride
        count = (((seen[:, must] - done).view(-1, _GROUP).amax(1) + 3) // 4).clamp(min=0)
        here = torch.minimum(seen[:, min(w * stride + window, cols)] - done, 4 * count.repeat_interleave(_GROUP))
        took[:, w], steps[:, w] = here, count
        done += here
    return took, steps


def window_count(cols: int, stride: int, window: int) -> int:
    """Return how many windows there are."""
    return 1 if cols <= window else -(-(cols - window) // stride) + 1


def _in_order(steps: Tensor, tiles: int, lines: int, held: int) -> tuple[Tensor, Tensor]:
    """Starts of the groups in their tiles, and the first step of each group and window."""
    groups, windows = steps.shape
    in_tiles = F.pad(steps, (0, tiles * lines - windows)).view(groups, tiles, lines)
    parts = [block.transpose(0, 1).reshape(-1, lines) for block in in_tiles.split(held)]
    flat = torch.cat(parts) if parts else in_tiles.new_zeros((0, lines))
    starts = F.pad(flat.reshape(-1).cumsum(0), (1, 0))
    pos = starts[::lines].int() if flat.numel() else starts.int()
    first = starts[:-1].view(-1, lines)
    sizes = [min(held, groups - at) for at in range(0, groups, held)]
    back = [part.view(tiles, n, lines).transpose(0, 1) for part, n in zip(first.split([n * tiles for n in sizes]), sizes, strict=True)]
    return pos, (torch.cat(back) if back else in_tiles).reshape(groups, tiles * lines)[:, :windows]


def lines(weight: Rounded, mask: Tensor) -> Int8Weight:
    """Pack blocks of 1x4: tokens are the lanes. Any mask is taken; a block is stored where one of its four is kept.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = torch.eye(3, 9).repeat_interleave(4, 1)
    >>> packed = lines(rounded(w), w != 0)
    >>> packed.pos[:3].tolist(), packed.crd.tolist(), unpack(packed)[1, 3:9].tolist()
    ([0, 1, 1], [0, 1, 2, 9], [0, 127, 127, 127, 127, 0])
    """
    rows, cols = mask.shape
    check_cols(cols)
    block = min(_ROWS, -(-max(rows, 1) // _GROUP) * _GROUP)
    kept = F.pad(mask, (0, -cols % 4, 0, -rows % block)).view(-1, -(-cols // 4), 4).any(2)
    quads = kept.shape[1]
    tiles = max(-(-quads // _QUADS), 1)
    each = max(-(-quads // tiles), 1)
    cut = F.pad(kept, (0, tiles * each - quads)).view(-1, block, tiles, each).transpose(1, 2)  # [blocks, tiles, block, each]
    count = cut.sum(3)
    order = count.argsort(dim=2, descending=True, stable=True)
    steps = count.gather(2, order)[..., ::4].reshape(-1)  # of a unit of four rows, the first of which is the longest
    pos = F.pad(steps.cumsum(0), (1, 0))
    slot = order.argsort(dim=2)
    b, k, r, j = cut.nonzero(as_tuple=True)
    s = slot[b, k, r]
    step = pos[((b * tiles + k) * block + s) // 4] + cut.cumsum(3)[b, k, r, j] - 1
    crd = torch.full((int(pos[-1]), 4), each, dtype=torch.uint8)
    crd[step, s % 4] = j.to(torch.uint8)
    padded = F.pad(weight.values, (0, -cols % 4, 0, kept.shape[0] - rows)).view(-1, quads, 4)
    values = torch.zeros(*crd.shape, 4, dtype=torch.int8)
    values[step, s % 4] = padded[b * block + r, k * each + j]
    row = order.reshape(-1).to(torch.uint8)
    return Int8Weight(
        values.view(-1), pos.int(), crd.view(-1), row, weight.scale, _sums(weight), LINES, rows, cols, each, block
    )


def unpack(weight: Int8Weight) -> Tensor:
    """Return the int8 matrix of a packed weight."""
    if weight.kind == DENSE:
        quads = -(-weight.cols // 4)
        whole = weight.values.view(-1, quads, _GROUP, 4).transpose(1, 2).reshape(-1, 4 * quads)
        return whole[: weight.rows, : weight.cols].contiguous()
    out = torch.zeros(weight.rows, weight.cols, dtype=torch.int8)
    row, col, value = entries(weight)
    out[row, col] = value
    return out


def entries(weight: Int8Weight) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and value of everything that a sparse weight stores; of blocks, what lies inside of the matrix."""
    row, col, value = (_lookup_entries if weight.kind == LOOKUP else _lines_entries)(weight)
    inside = (row < weight.rows) & (col < weight.cols)
    return row[inside], col[inside], value[inside]


def _lookup_entries(w: Int8Weight) -> tuple[Tensor, Tensor, Tensor]:
    assert w.pos is not None and w.crd is not None and w.line is not None
    held = _BLOCK // (_GROUP * w.tall)
    groups = -(-w.rows // (_GROUP * w.tall))
    tiles = (w.pos.numel() - 1) // max(groups, 1)
    where = [(g, k) for b in range(0, groups, held) for k in range(tiles) for g in range(b, min(b + held, groups))]
    steps = w.pos.diff().long()
    group, tile = torch.tensor(where, dtype=torch.int64).view(-1, 2).repeat_interleave(steps, 0).unbind(1)
    crd = w.crd.view(-1, _GROUP, 4).long()
    begin = (tile * w.lines + w.line.long()) * w.stride
    lane = torch.empty(_GROUP, dtype=torch.int64)
    lane[lane_of(torch.arange(_GROUP), w.tall)] = torch.arange(_GROUP)
    unit = group[:, None, None] * _GROUP + lane[:, None].expand(_GROUP, 4)
    used = (crd != _UNUSED)[:, None].expand(-1, w.tall, -1, -1)
    row = unit[:, None] * w.tall + torch.arange(w.tall)[:, None, None]
    col = (begin[:, None, None] + crd)[:, None].expand_as(row)
    return row[used], col[used], w.values.view(-1, w.tall, _GROUP, 4)[used]


def _lines_entries(w: Int8Weight) -> tuple[Tensor, Tensor, Tensor]:
    assert w.pos is not None and w.crd is not None and w.line is not None
    block = w.stride
    blocks = -(-w.rows // block)
    units = block // 4
    tiles = (w.pos.numel() - 1) // max(blocks * units, 1)
    unit = torch.arange(w.pos.numel() - 1).repeat_interleave(w.pos.diff().long())
    crd = w.crd.view(-1, 4).long()
    row = unit[:, None] // (units * tiles) * block + w.line.view(-1, 4).long()[unit]
    quad = (unit // units % max(tiles, 1))[:, None] * w.lines + crd
    used = (crd != w.lines)[..., None].expand(-1, -1, 4)
    col = quad[..., None] * 4 + torch.arange(4)
    return row[..., None].expand_as(col)[used], col[used], w.values.view(-1, 4, 4)[used]


def _sums(weight: Rounded) -> Tensor:
    return weight.values.sum(1, dtype=torch.int32)
