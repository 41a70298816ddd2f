"""From a matrix of int8 and a mask to the bytes that the kernels read: dense, a bitmap, or blocks of 1x4 by lines."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gossamer.kernels.int8.weight import BITMAP, DENSE, GROUP, LINES, SPARE, Rounded, Sizes, check_cols, together

_QUADS = 192  # columns of blocks of a tile: 24 KB for 32 tokens
_ROWS = 128  # rows that are sorted by length


def dense(weight: Rounded, mask: Tensor | None = None) -> Tensor:
    """Return a matrix as it is, with a mask beside it, a bit for each position, unless all is kept.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.unpack import unpack
    >>> from gossamer.kernels.int8.weight import rounded
    >>> unpack(dense(rounded(torch.eye(3, 5)))).tolist()
    [[127, 0, 0, 0, 0], [0, 127, 0, 0, 0], [0, 0, 127, 0, 0]]
    """
    rows, cols = weight.values.shape
    check_cols(cols)
    values = _by_quads(weight.values)
    if mask is None or bool(mask.all()):
        return together(Sizes(DENSE, rows, cols), weight.scale, values, sums_of(weight))
    bits = _bits(F.pad(mask, (0, -cols % 8)))
    return together(Sizes(DENSE, rows, cols, masked=1), weight.scale, values, sums_of(weight), bits)


def bitmap(weight: Rounded, mask: Tensor) -> Tensor:
    """Return the values that the mask keeps, in the order of a dense weight, and a bit for each position.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.unpack import unpack
    >>> from gossamer.kernels.int8.weight import parts, rounded
    >>> w = torch.tensor([[1.0, 0.0, 0.5], [0.0, 2.0, 0.0]])
    >>> packed = bitmap(rounded(w), w != 0)
    >>> parts(packed).crd.tolist(), parts(packed).values[:3].tolist()
    ([37, 0, 0, 0, 0, 0, 0, 0], [127, 64, 127])
    """
    rows, cols = mask.shape
    check_cols(cols)
    kept, values = _by_quads(mask), _by_quads(weight.values)
    pos = F.pad(kept.flatten(1).sum(1).cumsum(0), (1, 0)).int()
    sizes = Sizes(BITMAP, rows, cols, steps=int(pos[-1]))
    return together(sizes, weight.scale, F.pad(values[kept], (0, SPARE)), sums_of(weight), pos, _bits(kept))


def _by_quads(matrix: Tensor) -> Tensor:
    """Groups of sixteen rows, four columns of all of them at a time: [group, column / 4, row % 16, column % 4]."""
    rows, cols = matrix.shape
    padded = F.pad(matrix, (0, -cols % 4, 0, -rows % GROUP))
    return padded.view(padded.shape[0] // GROUP, GROUP, padded.shape[1] // 4, 4).transpose(1, 2)


def _bits(mask: Tensor) -> Tensor:
    """Eight positions in a byte."""
    eight = mask.reshape(-1, 8).to(torch.uint8)
    return (eight << torch.arange(8, dtype=torch.uint8)).sum(1, dtype=torch.uint8)


def lines(weight: Rounded, mask: Tensor) -> Tensor:
    """Return blocks of 1x4, for many tokens. Any mask is taken; a block is stored where one of its four is kept.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8.unpack import unpack
    >>> from gossamer.kernels.int8.weight import parts, rounded
    >>> w = torch.eye(3, 9).repeat_interleave(4, 1)
    >>> packed = lines(rounded(w), w != 0)
    >>> parts(packed).crd.tolist(), unpack(packed)[1, 3:9].tolist()
    ([0, 1, 2, 9], [0, 127, 127, 127, 127, 0])
    """
    rows, cols = mask.shape
    check_cols(cols)
    block = min(_ROWS, -(-max(rows, 1) // GROUP) * GROUP)
    quads, all_rows = -(-cols // 4), rows + -rows % block
    kept = F.pad(mask, (0, -cols % 4, 0, -rows % block)).view(all_rows, quads, 4).any(2)
    tiles = max(-(-quads // _QUADS), 1)
    each = max(-(-quads // tiles), 1)
    cut = (
        F.pad(kept, (0, tiles * each - quads)).view(all_rows // block, block, tiles, each).transpose(1, 2)
    )  # block, tile, row, quad
    count = cut.sum(3)
    order = count.argsort(dim=2, descending=True, stable=True)
    steps = count.gather(2, order)[..., ::4].reshape(-1)  # of a unit of four rows, the first of which is the longest
    pos = F.pad(steps.cumsum(0), (1, 0))
    b, k, r, j = cut.nonzero(as_tuple=True)
    slot = order.argsort(dim=2)[b, k, r]
    step = pos[((b * tiles + k) * block + slot) // 4] + cut.cumsum(3)[b, k, r, j] - 1
    crd = torch.full((int(pos[-1]), 4), each, dtype=torch.uint8)
    crd[step, slot % 4] = j.to(torch.uint8)
    padded = F.pad(weight.values, (0, -cols % 4, 0, all_rows - rows)).view(all_rows, quads, 4)
    values = torch.zeros(*crd.shape, 4, dtype=torch.int8)
    values[step, slot % 4] = padded[b * block + r, k * each + j]
    sizes = Sizes(LINES, rows, cols, each, block, steps=crd.shape[0])
    return together(sizes, weight.scale, values, sums_of(weight), pos.int(), crd, order.to(torch.uint8))


def sums_of(weight: Rounded) -> Tensor:
    """Return the sum of each row."""
    return weight.values.sum(1, dtype=torch.int32)
