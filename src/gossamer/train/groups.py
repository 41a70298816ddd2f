"""Gradual n:m and V:N:M: more and more groups of columns have the pattern, and the others keep all of their weights.

If instead all groups kept fewer and fewer of m, each stage would remove an eighth of the weights (of m = 8) or entire
columns of a layer at once, more than a network recovers from.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.patterns import Pattern
from gossamer.train.rules import comparable


def by_groups(pattern: Pattern, scores: Tensor, mask: Tensor, share: float) -> Tensor:
    """Return a mask in which a share of the groups has the pattern: those that lose the least by it.

    A group is what the pattern decides together: m columns of a row, or of v rows that share columns. A group that has
    the pattern already loses nothing, so it keeps it.

    Parameters
    ----------
    pattern
        One whose rows choose n of m columns (:meth:`gossamer.patterns.Pattern.choice`).
    scores, mask
        Of a layer, [outputs, inputs]; the weights that are kept now.
    share
        Of all groups, from 0 to 1.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> scores = torch.tensor([[9.0, 8.0, 7.0, 6.0, 5.0, 1.0, 1.0, 5.0]])
    >>> by_groups(gs.NM(2, 4), scores, torch.ones(1, 8, dtype=torch.bool), share=0.5).int()
    tensor([[1, 1, 1, 1, 1, 0, 0, 1]], dtype=torch.int32)
    """
    choice = pattern.choice(len(scores))
    assert choice is not None
    scores = comparable(scores)
    full = mask & pattern.pick(torch.where(mask, scores, scores.amin() - 1 if scores.numel() else scores))
    lost = _by_group(scores * (mask & ~full), choice.rows, choice.m).sum((1, 3))
    count = round(share * lost.numel())
    reached = torch.zeros(lost.numel(), dtype=torch.bool, device=lost.device)
    reached[lost.flatten().argsort(stable=True)[:count]] = True
    rows, columns = scores.shape
    spread = reached.view(lost.shape).repeat_interleave(choice.rows, 0)[:rows]
    return torch.where(spread.repeat_interleave(choice.m, 1)[:, :columns], full, mask)


def _by_group(matrix: Tensor, rows: int, m: int) -> Tensor:
    """View a matrix as [blocks of rows, rows, groups, m]; what is beyond its edges is zero."""
    padded = pad(matrix, (0, -matrix.shape[1] % m, 0, -matrix.shape[0] % rows))
    return padded.view(padded.shape[0] // rows, rows, padded.shape[1] // m, m)
