"""Patterns a few columns at a time: what a sweep may keep of the columns it is at.

Patterns that decide each m columns on their own are asked for m columns. Patterns that drop a share of everything drop
that share of each portion, counted so that the whole comes out exact. Others can't be split.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, KeepAll, Pattern, Unstructured
from gossamer.prune.decay import SharedNM


class Portions:
    """A pattern for a matrix of these rows and columns, to be asked for one portion of columns after the other.

    Examples
    --------
    >>> import torch
    >>> from gossamer.patterns import Unstructured
    >>> portions = Portions(Unstructured(0.5), 1, 6, block=3)
    >>> [portions.select(torch.tensor([1.0, 2.0, 3.0])[None, :, None], at).sum().item() for at in (0, 3)]
    [1, 2]
    """

    def __init__(self, pattern: Pattern, rows: int, columns: int, block: int = 128) -> None:
        self.pattern, self.rows, self.columns = pattern, rows, columns
        self.width = self._width(block)
        """Columns to ask for at a time; 0 where the pattern can't be split."""

    def _width(self, block: int) -> int:
        pattern = self.pattern
        if isinstance(pattern, NM | VNM | GroupedNM | SharedNM):
            return pattern.m
        if isinstance(pattern, Blocks):
            wide = pattern.block[1]
            return max(block - block % wide, wide)
        return block if isinstance(pattern, Unstructured | FanIn | KeepAll) else 0

    def select(self, scores: Tensor, at: int) -> Tensor:
        """What stays of the columns from `at` on: scores and mask are [groups, columns, rows]."""
        groups, wide, tall = scores.shape
        if isinstance(self.pattern, NM) and self.pattern.m <= 8:
            return keep_few(scores, self.pattern.n)
        matrix = scores.transpose(1, 2).reshape(groups * tall, wide)
        mask = self._portion(at, wide).select(matrix)
        return mask.view(groups, tall, wide).transpose(1, 2)

    def _portion(self, at: int, wide: int) -> Pattern:
        pattern = self.pattern
        if isinstance(pattern, FanIn):
            kept = pattern.kept(self.columns)
            return FanIn(k=round(kept * (at + wide) / self.columns) - round(kept * at / self.columns))
        if isinstance(pattern, Unstructured):
            rows = 1 if pattern.per == "row" else self.rows
            return replace(pattern, sparsity=(self._gone(rows, at + wide) - self._gone(rows, at)) / (rows * wide))
        if isinstance(pattern, Blocks):
            tall, side = -(-self.rows // pattern.block[0]), pattern.block[1]
            before, after = at // side, -(-(at + wide) // side)
            gone = [round(pattern.sparsity * tall * n) for n in (before, after)]
            return replace(pattern, sparsity=(gone[1] - gone[0]) / (tall * (after - before)))
        return pattern

    def _gone(self, rows: int, columns: int) -> int:
        """How many of the first columns go, as the pattern rounds it."""
        return round(self.pattern.sparsity_of((rows, columns)) * rows * columns) if columns else 0  # type: ignore[operator]

    def by_row(self, scores: Tensor) -> Tensor:
        """The mask of the whole matrix, with unstructured sparsity taken from each row alike, and exact in all."""
        if not (isinstance(self.pattern, Unstructured) and self.pattern.per == "tensor"):
            return self.pattern.select(scores)
        counts = [self._gone(row, self.columns) for row in range(self.rows + 1)]
        few = min(b - a for a, b in pairwise(counts))
        mask = Unstructured(few / self.columns, per="row").select(scores)
        many = counts[-1] - few * self.rows  # so many rows lose one more
        if many:
            lowest = scores.masked_fill(~mask, torch.inf).min(1)
            which = lowest.values.argsort(stable=True)[:many]
            mask[which, lowest.indices[which]] = False
        return mask


def keep_few(scores: Tensor, n: int) -> Tensor:
    """The n highest of each few columns, [groups, columns, rows], the lower column first among equals.

    Examples
    --------
    >>> import torch
    >>> keep_few(torch.tensor([2.0, 1.0, 2.0, 2.0])[None, :, None], 2).flatten()
    tensor([ True, False,  True, False])
    """
    columns = scores.shape[1]
    above = torch.zeros(scores.shape, dtype=torch.int8, device=scores.device)  # how many columns go before this one
    for apart in range(1, columns):
        won = (scores[:, :-apart] >= scores[:, apart:]).view(torch.int8)
        above[:, apart:] += won
        above[:, :-apart] -= won
    behind = torch.arange(columns - 1, -1, -1, dtype=torch.int8, device=scores.device)
    return above.add_(behind[None, :, None]) < n
