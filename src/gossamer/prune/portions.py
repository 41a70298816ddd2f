"""Patterns a few columns at a time: what a sweep may keep of the columns it is at."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.patterns import Pattern

_FEW = 8  # columns up to which counting beats sorting


class Portions:
    """A pattern for a matrix of these rows and columns, to be asked for one portion of columns after the other.

    Examples
    --------
    >>> import torch
    >>> from gossamer.patterns import Unstructured
    >>> portions = Portions(Unstructured(0.5), 1, 6, near=3)
    >>> [portions.select(torch.tensor([1.0, 2.0, 3.0])[None, :, None], at).sum().item() for at in (0, 3)]
    [1, 2]
    """

    def __init__(self, pattern: Pattern, rows: int, columns: int, near: int = 128) -> None:
        self.pattern, self.shape = pattern, (rows, columns)
        self.width = pattern.period or max(near - near % pattern.unit[1], pattern.unit[1])
        """Columns to ask for at a time, about `near`; 0 where the pattern can't be split."""
        if not pattern.ranks or pattern.portion(self.shape, 1, 0, min(self.width, columns)) is None:
            self.width = 0

    def select(self, scores: Tensor, at: int) -> Tensor:
        """What stays of the columns from `at` on: scores and mask are [groups, columns, rows]."""
        groups, wide, tall = scores.shape
        choice = self.pattern.choice(self.shape[0])
        if choice is not None and choice.shared is None and choice.m <= _FEW:
            return keep_few(scores, choice.n)
        portion = self.pattern.portion(self.shape, 1, at, at + wide)
        assert portion is not None
        mask = portion.select(scores.transpose(1, 2).reshape(groups * tall, wide))
        return mask.view(groups, tall, wide).transpose(1, 2)


def keep_few(scores: Tensor, n: int) -> Tensor:
    """The n highest of each few columns, [groups, columns, rows], the lower column first among equals.

    Examples
    --------
    >>> import torch
    >>> keep_few(torch.tensor([2.0, 1.0, 2.0, 2.0])[None, :, None], 2).flatten()
    tensor([ True, False,  True, False])
    """
    columns = scores.shape[1]
    above = torch.zeros(scores.shape, dtype=torch.int8, device=scores.device)  # columns that rank before this one
    for apart in range(1, columns):
        won = (scores[:, :-apart] >= scores[:, apart:]).view(torch.int8)
        above[:, apart:] += won
        above[:, :-apart] -= won
    behind = torch.arange(columns - 1, -1, -1, dtype=torch.int8, device=scores.device)
    return above.add_(behind[None, :, None]) < n
