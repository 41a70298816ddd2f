"""Blocks of values are kept or removed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count, as_fraction, as_matrix, dropped, matrix_shape, shortest
from ._rank import keep_top, tame, tree_sum
from ._text import INT, PERCENT, Form, from_percent, percent
from .base import Pattern

#: Blocks that are recognised, the largest first: fewer of them, and more rows that share what they load.
_RECOGNISED = ((32, 32), (16, 16), (8, 8), (4, 4), (1, 32), (1, 16), (1, 8), (1, 4), (2, 2), (4, 1), (8, 1), (16, 1))


@dataclass(frozen=True)
class Blocks(Pattern):
    """Removes exactly `round(sparsity * blocks)` blocks, those with the lowest mean score.

    For equal means, the lower block index (row by row) is kept. If the block doesn't divide the shape, blocks at the
    right and bottom edges are smaller. They count as one block each, and rank by the mean of their values.

    Parameters
    ----------
    sparsity
        Fraction of blocks that are removed, from 0 to 1.
    block
        Rows and columns of a block; a single int is a square.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 2.0]])
    >>> Blocks(0.5, (2, 2)).select(scores).int().tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    >>> str(Blocks(0.8))
    'block 4x4 80%'
    """

    sparsity: float
    block: tuple[int, int] = (4, 4)

    forms: ClassVar[tuple[Form, ...]] = (
        Form(
            "block 4x4 80%",
            f"block {INT}x{INT} {PERCENT}",
            lambda height, width, p: Blocks(from_percent(p), (int(height), int(width))),
        ),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", as_fraction("sparsity", self.sparsity))
        block: object = self.block
        sides = (block, block) if isinstance(block, int) else tuple(block) if isinstance(block, tuple | list) else ()
        if len(sides) != 2:
            raise ValueError(f"block must be two integers (rows, columns), got {block!r}. Write block=(4, 4).")
        height, width = sides
        object.__setattr__(self, "block", (as_count("block rows", height), as_count("block columns", width)))

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        if not matrix.numel():
            return torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        # A block larger than the matrix covers all of it: padding up to it would only cost memory.
        height, width = min(self.block[0], rows), min(self.block[1], columns)
        padded = pad(tame(matrix.double()), (0, -columns % width, 0, -rows % height))
        tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
        sums = tree_sum(tree_sum(tiles, 1), 2)
        # As if blocks at the edges were filled up with their own mean, so that sums compare as means do.
        if rows % height:
            sums[-1] *= height / (rows % height)
        if columns % width:
            sums[:, -1] *= width / (columns % width)
        kept = keep_top(sums, sums.numel() - dropped(self.sparsity, sums.numel()))
        mask = kept.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
        return mask.reshape(scores.shape)

    @property
    def unit(self) -> tuple[int, int]:
        return self.block

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        sides = matrix_shape(shape)
        if start % self.block[dim] or (stop % self.block[dim] and stop != sides[dim]) or stop <= start:
            return None
        across = -(-sides[1 - dim] // self.block[1 - dim])
        before, after = (across * -(-at // self.block[dim]) for at in (start, stop))
        gone = dropped(self.sparsity, after) - dropped(self.sparsity, before)
        return replace(self, sparsity=gone / (after - before))

    def towards(self, share: float) -> Pattern:
        return self if share >= 1 else replace(self, sparsity=round(self.sparsity * max(share, 0.0), 6))

    @property
    def formats(self) -> tuple[str, ...]:
        return (f"BSR({self.block})",)

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """The largest blocks that are kept or removed as a unit; there must be at least two in each direction."""
        rows, columns = mask.shape
        for height, width in _RECOGNISED:
            if (height > 1 and rows < 2 * height) or (width > 1 and columns < 2 * width):
                continue
            if not _made_of(mask[:height], height, width):  # which most often tells
                continue
            if _made_of(mask, height, width):
                kept = _blocks(mask, height, width)
                gone = kept.numel() - int(kept.sum())
                return cls(shortest(gone, kept.numel()), (height, width))
        return None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        """The share of blocks that are removed. It is also the share of values, if the block divides the shape.

        Examples
        --------
        >>> Blocks(0.8, (4, 4)).sparsity_of((8, 20))
        0.8
        """
        rows, columns = matrix_shape(shape)
        blocks = -(-rows // self.block[0]) * -(-columns // self.block[1])
        return dropped(self.sparsity, blocks) / blocks if blocks else 0.0

    def __str__(self) -> str:
        return f"block {self.block[0]}x{self.block[1]} {percent(self.sparsity)}"


def _blocks(mask: Tensor, height: int, width: int) -> Tensor:
    """Which blocks keep anything."""
    rows, columns = mask.shape
    padded = pad(mask, (0, -columns % width, 0, -rows % height))
    return padded.view(padded.shape[0] // height, height, -1, width).any(3).any(1)


def _made_of(mask: Tensor, height: int, width: int) -> bool:
    """Are all blocks kept or removed as a unit?"""
    kept = _blocks(mask, height, width).repeat_interleave(height, 0).repeat_interleave(width, 1)
    return torch.equal(kept[: mask.shape[0], : mask.shape[1]], mask)
