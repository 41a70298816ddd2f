"""Choosing 4 of m columns for a block of rows, when each row then keeps the best 2 of the 4.

Scores come as [m, rows, blocks], so that every step is one element-wise operation over long contiguous planes. The
sum of the two largest of a, b, c, d is max(max(a, b) + max(c, d), a + b, c + d): with tables of all pairs, each of
the C(m, 4) sets costs three operations a row and one to add up. Floor for 4096x4096 at 64:2:16: 1820 sets x 1 M row
groups x 4 = 7.6 G operations.
"""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from ._rank import tree_sum

EXACT_UP_TO = 16
_SLAB = 128  # rows summed in one go; fixed, so that rounding depends on nothing else
_PLANE = {"cpu": 1 << 14}  # values of one column held at a time: pair tables near the cache on a CPU ...
_PLANE_ELSEWHERE = 1 << 19  # ... and enough work for one launch on a GPU
_REFINE_VALUES = 1 << 22


def best_columns(scores: Tensor) -> Tensor:
    """The 4 columns of each block, ascending: int64 [4, blocks]. Among equals the first set in lexicographic order."""
    m, rows, blocks = scores.shape
    if m <= 4:
        return torch.arange(m, device=scores.device)[:, None].expand(m, blocks)
    if m <= EXACT_UP_TO:
        plane = _PLANE.get(scores.device.type, _PLANE_ELSEWHERE)
        step, choose = min(max(1, plane // min(rows, _SLAB)), 1 << 13), _exact
    else:
        step, choose = max(1, _REFINE_VALUES // (m * rows)), _refined
    parts = [choose(scores[:, :, start : start + step].contiguous()) for start in range(0, blocks, step)]
    return torch.cat(parts, 1).sort(0).values


def _exact(scores: Tensor) -> Tensor:
    """Every set of 4 columns, in lexicographic order."""
    m, rows, blocks = scores.shape
    sets = torch.tensor(list(combinations(range(m), 4)), device=scores.device)
    total = torch.zeros(len(sets), blocks, dtype=torch.float64, device=scores.device)
    for start in range(0, rows, _SLAB):
        total += _all_sets(scores[:, start : start + _SLAB])
    return sets[total.argmax(0)].t()


def _all_sets(scores: Tensor) -> Tensor:
    """Sums over the rows of the best 2 of 4, for all sets of 4 columns: [C(m, 4), blocks]."""
    m = len(scores)
    pairs = list(combinations(range(m), 2))
    first, second = torch.tensor(pairs, device=scores.device).unbind(1)
    higher, both = torch.maximum(scores[first], scores[second]), scores[first] + scores[second]
    sums = []
    for index, (_, j) in enumerate(pairs):
        # Pairs are sorted, so those that lie wholly behind column j are the tail of the list: C(m - 1 - j, 2) of them.
        behind = len(pairs) - (m - 1 - j) * (m - 2 - j) // 2
        if behind == len(pairs):
            continue
        best = higher[behind:] + higher[index]
        torch.maximum(best, both[behind:], out=best)
        torch.maximum(best, both[index], out=best)
        sums.append(tree_sum(best, 1))
    return torch.cat(sums)


def _refined(scores: Tensor) -> Tensor:
    """Two starts, each refined until no single exchange of a column helps; the better of them."""
    starts = (tree_sum(scores, 1), scores.amax(1))
    found = [_exchange(scores, start.sort(dim=0, descending=True, stable=True).indices[:4]) for start in starts]
    (one, one_sum), (two, two_sum) = found
    return torch.where(two_sum > one_sum, two, one)


def _exchange(scores: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Replace one column after the other by the best for the rest, until nothing changes; the columns and their sum."""
    m, rows, blocks = scores.shape
    columns = columns.clone()
    still = 0
    reached = torch.full((blocks,), -torch.inf, dtype=scores.dtype, device=scores.device)
    for turn in range(16 * m):
        slot = turn % 4
        rest = columns[[k for k in range(4) if k != slot]]
        top, middle = scores.gather(0, rest[:, None, :].expand(3, rows, blocks)).sort(0, descending=True).values[:2]
        # With column x, a row keeps top and the larger of middle and x, in whatever order they come.
        sums = tree_sum(torch.maximum(scores, middle) + top, 1).scatter(0, rest, -torch.inf)
        best, where = sums.max(0)
        better = best > reached
        columns[slot] = torch.where(better, where, columns[slot])
        reached = torch.maximum(best, reached)
        still = 0 if bool(better.any()) else still + 1
        if still == 4:
            break
    return columns, reached
