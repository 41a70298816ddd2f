"""From the bytes of an int8 weight back to a matrix, and the check of bytes from outside."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.kernels.int8.lookup import lane_of
from gossamer.kernels.int8.weight import BITMAP, BLOCK, DENSE, GROUP, LINES, LOOKUP, SPARE, UNUSED, Parts, parts


def unpack(weight: Tensor) -> Tensor:
    """Return the int8 matrix of a weight."""
    made = parts(weight)
    sizes = made.sizes
    if sizes.kind == DENSE:
        return _from_quads(made.values, made)
    if sizes.kind == BITMAP:
        kept = _bits(made.crd)
        values = torch.zeros(kept.shape, dtype=torch.int8)
        values[kept] = made.values[:-SPARE]
        return _from_quads(values, made)
    out = torch.zeros(sizes.rows, sizes.cols, dtype=torch.int8)
    row, col, value = entries(made)
    out[row, col] = value
    return out


def mask_of(weight: Tensor) -> Tensor:
    """Return which positions a weight keeps: of a dense one without a mask, all.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.lookup import lookup
    >>> from gossamer.kernels.int8.weight import rounded
    >>> mask = torch.tensor([[True, False, True]])
    >>> mask_of(lookup(rounded(torch.tensor([[1.0, 0.0, 0.0]])), mask)).tolist()
    [[True, False, True]]
    """
    made = parts(weight)
    rows, cols = made.sizes.rows, made.sizes.cols
    if made.sizes.kind == DENSE and made.sizes.masked:
        return _bits(made.crd).view(rows, -(-cols // 8) * 8)[:, :cols]
    if made.sizes.kind == BITMAP:
        return _from_quads(_bits(made.crd), made)
    out = torch.ones(rows, cols, dtype=torch.bool)
    if made.sizes.kind != DENSE:
        row, col, _ = entries(made)
        out.zero_()[row, col] = True
    return out


def _bits(crd: Tensor) -> Tensor:
    """The bits of bytes, the lowest first."""
    return (crd[:, None] >> torch.arange(8, dtype=torch.uint8) & 1).bool().flatten()


def _from_quads(values: Tensor, made: Parts) -> Tensor:
    """A matrix whose values are in the order of a dense weight."""
    sizes = made.sizes
    quads = -(-sizes.cols // 4)
    padded = values.view(sizes.groups, quads, GROUP, 4).transpose(1, 2).reshape(sizes.groups * GROUP, 4 * quads)
    return padded[: sizes.rows, : sizes.cols].contiguous()


def entries(made: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """Return row, column and value of all that a lookup or lines store inside the matrix."""
    row, col, value = (_lookup if made.sizes.kind == LOOKUP else _lines)(made)
    inside = (row < made.sizes.rows) & (col < made.sizes.cols)
    return row[inside], col[inside], value[inside]


def _lookup(made: Parts) -> tuple[Tensor, Tensor, Tensor]:
    sizes, groups, tiles = made.sizes, made.sizes.groups, made.sizes.tiles
    held = BLOCK // (GROUP * sizes.tall)
    where = [(g, k) for b in range(0, groups, held) for k in range(tiles) for g in range(b, min(b + held, groups))]
    steps = made.pos.diff().long()
    group, tile = torch.tensor(where, dtype=torch.int64).view(-1, 2).repeat_interleave(steps, 0).unbind(1)
    crd = made.crd.view(-1, GROUP, 4 // sizes.wide, 1).long()  # step, lane, place
    begin = (tile * sizes.lines + made.line.long()) * sizes.stride
    unit = torch.empty(GROUP, dtype=torch.int64)
    unit[lane_of(torch.arange(GROUP), sizes.tall)] = torch.arange(GROUP)  # of each lane
    first = (group[:, None] * GROUP + unit) * sizes.tall
    row = first[:, None, :, None, None] + torch.arange(sizes.tall)[:, None, None, None]
    col = begin[:, None, None, None] + crd * sizes.wide + torch.arange(sizes.wide)
    used = (crd != UNUSED)[:, None]
    row, col, used = torch.broadcast_tensors(row, col[:, None], used)
    return row[used], col[used], made.values.view(row.shape)[used]


def _lines(made: Parts) -> tuple[Tensor, Tensor, Tensor]:
    sizes, tiles, units = made.sizes, made.sizes.tiles, made.sizes.stride // 4
    unit = torch.arange(made.pos.numel() - 1).repeat_interleave(made.pos.diff().long())
    crd = made.crd.view(-1, 4).long()
    row = (unit // (units * tiles) * sizes.stride)[:, None] + made.line.view(-1, 4).long()[unit]
    col = (((unit // units % tiles) * sizes.lines)[:, None] + crd)[..., None] * 4 + torch.arange(4)
    used = (crd != sizes.lines)[..., None].expand_as(col)
    return row[..., None].expand_as(col)[used], col[used], made.values.view(-1, 4, 4)[used]


def check(weight: Tensor) -> None:
    """Raise ValueError if a kernel could read outside these bytes: for those that come from a file.

    Examples
    --------
    >>> import torch
    >>> check(torch.zeros(8, dtype=torch.uint8))
    Traceback (most recent call last):
    ValueError: an int8 weight is a vector of 128 uint8 or more, not torch.uint8 (8,)
    """
    made = parts(weight)
    sizes = made.sizes
    if sizes.kind == DENSE:
        return
    steps = made.pos.diff()
    if bool((steps < 0).any()) or int(made.pos[0]) != 0 or int(made.pos[-1]) != sizes.steps:
        raise ValueError(f"pos must run from 0 to {sizes.steps} and never backwards")
    if sizes.kind == BITMAP:
        kept = _bits(made.crd)
        if not torch.equal(kept.view(sizes.groups, -(-sizes.cols // 4) * 64).sum(1), steps.long()):
            raise ValueError("crd must have a bit for each value of a group")
        if int(_from_quads(kept, made).sum()) != sizes.steps:
            raise ValueError("crd has a bit outside the matrix")
        return
    most = sizes.stride if sizes.kind == LINES else sizes.lines
    if bool((made.line >= most).any()):
        raise ValueError(f"line has a number outside 0 .. {most - 1}")
    if sizes.kind == LINES and bool((made.crd > sizes.lines).any()):
        raise ValueError(f"crd has a column outside 0 .. {sizes.lines}")
    window = sizes.window // sizes.wide
    if sizes.kind == LOOKUP and bool(((made.crd >= window) & (made.crd != UNUSED)).any()):
        raise ValueError(f"crd has a column outside 0 .. {window - 1}")
