"""Whole blocks stay or go together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count, as_fraction, dropped, percent
from ._rank import keep_top, tame, tree_sum
from .base import Pattern, as_matrix, matrix_shape


@dataclass(frozen=True)
class Blocks(Pattern):
    """Drops exactly `round(sparsity * blocks)` of the blocks, those with the lowest sum of scores.

    Among equal sums the lower block index (row by row) stays. Where the block doesn't divide the shape, blocks at the
    right and bottom edges are smaller: they count as one block each and rank by the sum of what they have.

    Parameters
    ----------
    sparsity
        Fraction of blocks that go, from 0 to 1.
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
        # A block larger than the matrix is the whole matrix: padding up to it would only cost memory.
        height, width = min(self.block[0], rows), min(self.block[1], columns)
        padded = pad(tame(matrix.double()), (0, -columns % width, 0, -rows % height))
        tiles = padded.view(padded.shape[0] // height, height, padded.shape[1] // width, width)
        sums = tree_sum(tree_sum(tiles, 1), 2)
        kept = keep_top(sums, sums.numel() - dropped(self.sparsity, sums.numel()))
        mask = kept.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]
        return mask.reshape(scores.shape)

    def sparsity_of(self, shape: Sequence[int]) -> float:
        """The share of blocks that go, which is the share of values where the block divides the shape.

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
