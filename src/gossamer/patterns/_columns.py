"""Choosing the columns that a block of rows shares, when each row then keeps the best n of them.

Scores come as [m, rows, blocks], so that every step is one element-wise operation over long contiguous planes.

2 of 4 shared columns, as sparse tensor cores need, is exact up to m = 32: every set of 4 is tried. With t the largest
and u the second of three columns, a row keeps t + max(u, x) of the set that column x completes, so each of the C(m, 4)
sets costs two operations per row and one addition. Lower bound for 4096x4096 at 64:2:32: 35,960 sets x 0.5 M row groups
x 3 = 57 G operations, about 18 s of one core. Other choices are refined until no exchange of one column improves them.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import torch
from torch import Tensor

from ._rank import tree_sum

EXACT_UP_TO = 32
_PLANE = 1 << 14  # values of one column at a time on a CPU ...
_SETS = 1 << 22  # ... and values of all sets that begin with the same two columns: near the cache
_PLANE_ELSEWHERE = 1 << 19  # enough work for one launch on a GPU
_REFINE_VALUES = 1 << 22


def best_columns(scores: Tensor, n: int = 2, shared: int = 4) -> Tensor:
    """The shared columns of each block, ascending: int64 [shared, blocks].

    Parameters
    ----------
    scores
        [m, rows, blocks], finite.
    n
        How many of the shared columns each row keeps.
    shared
        How many columns the rows share. The sum of what the rows keep is the largest possible for 2 of 4 of up to 32
        columns, and then the first set in lexicographic order among equals.
    """
    m, rows, blocks = scores.shape
    if m <= shared:
        return torch.arange(m, device=scores.device)[:, None].expand(m, blocks)
    if (n, shared) == (2, 4) and m <= EXACT_UP_TO:
        pairs = (m - 2) * (m - 3) // 2
        plane = min(_PLANE, _SETS // pairs) if scores.device.type == "cpu" else _PLANE_ELSEWHERE
        parts = [_exact(part) for part in scores.split(max(1, plane // max(rows, 1)), 2)]
    else:
        step = max(1, _REFINE_VALUES // (m * rows))
        parts = [_refined(part.contiguous(), n, shared) for part in scores.split(step, 2)]
    return torch.cat(parts, 1).sort(0).values


def _exact(scores: Tensor) -> Tensor:
    """Every set of 4 columns, in lexicographic order: the best of each block, [4, blocks]."""
    m, rows, blocks = scores.shape
    scores = scores.contiguous()
    best = torch.full((blocks,), -torch.inf, dtype=scores.dtype, device=scores.device)
    which = torch.zeros(blocks, dtype=torch.int64, device=scores.device)
    values = scores.new_empty((m - 2) * (m - 3) // 2, rows, blocks)
    done = 0
    for i, j in combinations(range(m - 2), 2):
        first, second = torch.maximum(scores[i], scores[j]), torch.minimum(scores[i], scores[j])
        rest = scores[j + 1 :]
        top, middle = torch.maximum(first, rest), torch.maximum(second, torch.minimum(first, rest))
        count = 0
        for k in range(len(rest) - 1):  # column j + 1 + k is the third, each later one the fourth
            later = values[count : count + len(rest) - 1 - k]
            torch.maximum(rest[k + 1 :], middle[k], out=later)
            later += top[k]
            count += len(later)
        reached, place = tree_sum(values[:count], 1).max(0)
        better = reached > best
        best, which = torch.where(better, reached, best), torch.where(better, place + done, which)
        done += count
    return _sets_of_four(m).to(scores.device)[which].t()


@lru_cache(maxsize=64)
def _sets_of_four(m: int) -> Tensor:
    return torch.combinations(torch.arange(m), 4)


def _refined(scores: Tensor, n: int, shared: int) -> Tensor:
    """Two starts, each refined until no single exchange of a column helps; the better of them."""
    starts = (tree_sum(scores, 1), scores.amax(1))
    orders = [start.sort(dim=0, descending=True, stable=True).indices[:shared] for start in starts]
    (one, one_sum), (two, two_sum) = (_exchange(scores, order, n) for order in orders)
    return torch.where(two_sum > one_sum, two, one)


def _exchange(scores: Tensor, columns: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Replace one column after the other by the best for the rest, until nothing changes; the columns and their sum."""
    m, rows, blocks = scores.shape
    columns, shared = columns.clone(), len(columns)
    still = 0
    reached = torch.full((blocks,), -torch.inf, dtype=scores.dtype, device=scores.device)
    for turn in range(16 * m):
        slot = turn % shared
        rest = columns[[k for k in range(shared) if k != slot]]
        kept = scores.gather(0, rest[:, None, :].expand(shared - 1, rows, blocks)).sort(0, descending=True).values
        # With column x, a row keeps the best n - 1 and the larger of the n-th and x, in whatever order they come.
        sums = torch.maximum(scores, kept[n - 1]) if n < shared else scores
        sums = tree_sum(sums + tree_sum(kept[: n - 1], 0), 1).scatter(0, rest, -torch.inf)
        best, where = sums.max(0)
        better = best > reached
        columns[slot] = torch.where(better, where, columns[slot])
        reached = torch.maximum(best, reached)
        still = 0 if bool(better.any()) else still + 1
        if still == shared:
            break
    return columns, reached
