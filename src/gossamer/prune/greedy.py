"""Greedy removal with updates: one weight (or unit of weights) after the other, the cheapest first.

Within each block of the Fisher inverse, the cheapest unit is removed, the others compensate, and the cost becomes the
unit's score; this repeats until all are removed. The scores of all blocks are comparable: a pattern that removes the
lowest scores removes, in every block, the units that were removed first.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.prune.choose import quadratic

_VALUES = 1 << 22  # of inverse matrices worked on at a time


def greedy_scores(weight: Tensor, inverse: Tensor, unit: tuple[int, int] = (1, 1)) -> Tensor:
    """The cost of removing each weight when it is its turn: [rows, columns], with the shape of `weight`.

    Parameters
    ----------
    weight
        [rows, columns].
    inverse
        F^-1 in blocks, [rows, blocks, block, block]; `columns` may end within the last block. Rows may be 1: the same
        for all.
    unit
        Rows and columns that are removed together; its columns divide the block. The cost of a unit is divided among
        its values.

    Examples
    --------
    >>> import torch
    >>> inverse = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=torch.float64)
    >>> greedy_scores(torch.tensor([[1.0, 2.0]]), inverse[None, None])  # 1^2 / 2, then (2 - 0.9)^2 / (2 * 0.19)
    tensor([[0.5000, 3.1842]])
    """
    rows, columns = weight.shape
    height, width = min(unit[0], rows), unit[1]
    block = inverse.shape[-1]
    blocks = inverse.shape[1]
    tall = -(-rows // height)
    w = pad(weight.double(), (0, blocks * block - columns, 0, tall * height - rows))
    tiles = w.view(tall, height, blocks, block).transpose(1, 2)  # tall, blocks, height, block
    scores = torch.empty(tiles.shape, dtype=torch.float64, device=weight.device)
    step = max(1, _VALUES // (height * blocks * block * block))
    for at in range(0, tall, step):
        t = tiles[at : at + step]
        f = inverse.expand(rows, -1, -1, -1)[at * height : (at + step) * height]
        f = pad(f, (0, 0, 0, 0, 0, 0, 0, len(t) * height - len(f)))
        if len(t) * height > rows - at * height:  # rows of filling cost nothing
            f[rows - at * height :] = torch.eye(block, dtype=f.dtype, device=f.device)
        f = f.view(len(t), height, blocks, block, block).transpose(1, 2)
        scores[at : at + step] = _trace(t.flatten(0, 1).contiguous(), f.flatten(0, 1).contiguous(), width).view(t.shape)
    scores = scores.transpose(1, 2).reshape(tall * height, -1)[:rows, :columns].clone()
    if rows % height:  # units cut off at the edges have fewer values to share their cost
        scores[rows - rows % height :] *= height / (rows % height)
    if columns % width:
        scores[:, columns - columns % width :] *= width / (columns % width)
    return scores.to(weight.dtype)


def _trace(w: Tensor, inverse: Tensor, width: int) -> Tensor:
    """Scores of w [tiles, height, block] with F^-1 [tiles, height, block, block]."""
    tiles, height, block = w.shape
    units = block // width
    every = torch.arange(tiles, device=w.device)
    alive = torch.ones(tiles, units, dtype=torch.bool, device=w.device)
    found = torch.empty(tiles, units, dtype=torch.float64, device=w.device)
    reached = torch.zeros(tiles, dtype=torch.float64, device=w.device)
    w, f = w.double(), inverse.double()
    for _ in range(units):
        cost = _cost(w, f, width).masked_fill(~alive, torch.inf)
        least, which = cost.min(1)
        reached = torch.maximum(reached, least)  # later never counts as cheaper
        found[every, which] = reached
        alive[every, which] = False
        for k in range(width):
            i = which * width + k
            row = f[every, :, i]  # tiles, height, block
            pivot = row[every, :, i]
            scaled = row / pivot[..., None]
            w.addcmul_(scaled, w[every, :, i][..., None], value=-1)
            f.addcmul_(row[..., None], scaled[..., None, :], value=-1)
            w[every, :, i], f[every, :, i], f[every, :, :, i] = 0, 0, 0
            f[every, :, i, i] = 1
    return (found / (width * height))[:, None, :, None].expand(-1, height, -1, width).reshape(tiles, height, block)


def _cost(w: Tensor, inverse: Tensor, width: int) -> Tensor:
    """1/2 w_P^T ((F^-1)_PP)^-1 w_P of every unit P, summed over the rows of a tile: [tiles, units]."""
    tiles, height, block = w.shape
    if width == 1:
        return (w.square() / inverse.diagonal(dim1=2, dim2=3)).sum(1) / 2
    units = block // width
    split = inverse.view(tiles, height, units, width, units, width).diagonal(
        dim1=2, dim2=4
    )  # t, h, width, width, units
    matrix = split.permute(2, 3, 0, 1, 4).reshape(width, width, -1)
    vector = w.view(-1, width).t().contiguous()
    one = torch.arange(width, device=w.device)[None]
    return quadratic(matrix, vector, one).view(tiles, height, units).sum(1) / 2
