"""Choosing jointly which of every M neighbours are kept.

Removing a set P of weights, with the others compensating, costs 1/2 w_P^T ((F^-1)_PP)^-1 w_P. With G the inverse of
F^-1 within the M-group, b = G w and K the kept set, that is 1/2 (w^T G w - b_K^T (G_KK)^-1 b_K): the first term is the
same for all K, so the smaller of the two sets can be solved for. 2:8 needs 28 solves of 2x2 per group instead of 420 of
6x6, and 2:16 120 instead of 10,920 of 14x14.

All sets are tried where there are at most `EXHAUSTIVE` of them (any n of up to 12, 2 of 64, 4 of 16). Above that,
values are removed in pairs, the cheapest pair first, with updates in between. For the columns that V rows share, all
sets are tried if there are at most `EXHAUSTIVE` (4 of 16); above that, columns are exchanged one by one until no
exchange helps.

Tensors are laid out with the batch last, [m, m, batch], so that every step is element-wise over long rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from math import comb

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

EXHAUSTIVE = 2048
_VALUES = 1 << 23  # of a table of sets at a time


def tiled(weight: Tensor, v: int, m: int) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """A matrix as [tiles, v, m], filled up with zeros, and the way back for a mask of that shape.

    Examples
    --------
    >>> import torch
    >>> tiles, back = tiled(torch.arange(6.0).view(2, 3), 2, 2)
    >>> tiles.shape, back(tiles).tolist()
    (torch.Size([2, 2, 2]), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])
    """
    rows, columns = weight.shape
    filled = pad(weight, (0, -columns % m, 0, -rows % v))
    tall, groups = filled.shape[0] // v, filled.shape[1] // m

    def back(mask: Tensor) -> Tensor:
        return mask.view(tall, groups, v, m).transpose(1, 2).reshape(filled.shape)[:rows, :columns]

    return filled.view(tall, v, groups, m).transpose(1, 2).reshape(-1, v, m), back


def best_sets(weight: Tensor, inverse: Tensor, n: int, shared: int | None = None) -> Tensor:
    """Which n of every m weights to keep so that the loss, after compensation, is smallest: a bool mask like `weight`.

    Parameters
    ----------
    weight
        [tiles, rows, m].
    inverse
        F^-1 within each group, [tiles, rows, m, m]; either of the first two dimensions may be 1.
    n
        How many of m are kept in each row.
    shared
        The rows of a tile keep their n within this many columns, the same for all rows of the tile; None: any.

    Examples
    --------
    >>> import torch
    >>> weight = torch.tensor([[[3.0, 2.9, 1.0, 0.5]]])
    >>> inverse = torch.eye(4)
    >>> best_sets(weight, inverse[None, None], 2).int()
    tensor([[[1, 1, 0, 0]]], dtype=torch.int32)
    >>> inverse[:2, :2] = torch.tensor([[50.0, -49.5], [-49.5, 50.0]])  # the first two can stand in for each other
    >>> best_sets(weight, inverse[None, None], 2).int()
    tensor([[[1, 0, 1, 0]]], dtype=torch.int32)
    """
    tiles, rows, m = weight.shape
    if n >= m:
        return torch.ones(weight.shape, dtype=torch.bool, device=weight.device)
    if rows == 1 or shared is None or shared >= m:
        shared = None
    per_tile = rows * max(comb(m, n) if comb(m, n) <= EXHAUSTIVE else 1, m * m)
    step = max(1, _VALUES // per_tile)
    parts = []
    for at in range(0, tiles, step):
        w = weight[at : at + step]
        f = inverse if len(inverse) == 1 else inverse[at : at + step]
        parts.append(_best(w, f if f.shape[:2] == (1, 1) else f.expand(len(w), rows, m, m), n, shared))
    return torch.cat(parts) if parts else torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)


def _best(weight: Tensor, inverse: Tensor, n: int, shared: int | None) -> Tensor:
    tiles, rows, m = weight.shape
    w = weight.reshape(-1, m).t().contiguous().double()
    f = inverse.reshape(-1, m, m).permute(1, 2, 0).contiguous().double()  # batch, or 1: the same for all
    if comb(m, n) > EXHAUSTIVE:
        f = f.expand(m, m, w.shape[1])
        kept = _pairwise(w, f, n) if shared is None else _by_columns(w, f, n, shared, tiles)
        return kept.t().reshape(weight.shape)
    value = _values(w, f, n)
    sets = _sets(m, n, w.device)
    best = value.argmax(0) if shared is None else _share(value.view(-1, tiles, rows), m, n, shared).view(-1)
    mask = torch.zeros(tiles * rows, m, dtype=torch.bool, device=w.device)
    return mask.scatter_(1, sets[best], True).view(weight.shape)


@lru_cache(maxsize=64)
def _table(m: int, n: int) -> Tensor:
    return torch.tensor(list(combinations(range(m), n)), dtype=torch.int64).view(-1, n)


def _sets(m: int, n: int, device: torch.device) -> Tensor:
    return _table(m, n).to(device)


def _values(w: Tensor, inverse: Tensor, n: int) -> Tensor:
    """How much keeping each n of m is worth (higher is better; up to a constant a column): [sets, batch]."""
    m = len(w)
    if n <= m - n:
        precision = invert(inverse)
        return quadratic(precision, (precision * w).sum(1), _sets(m, n, w.device))
    gone = _sets(m, m - n, w.device).flip(0)  # complements of the sets of n, in the same order
    return -quadratic(inverse, w, gone)


def quadratic(matrix: Tensor, vector: Tensor, sets: Tensor) -> Tensor:
    """b_S^T (A_SS)^-1 b_S for every set S: [sets, batch], by Cholesky, over the batch at once.

    `matrix` is [m, m, batch] or [m, m, 1], `vector` [m, batch], `sets` int64 [sets, k].
    """
    k = sets.shape[1]
    lower: dict[tuple[int, int], Tensor] = {}
    total = torch.zeros(len(sets), vector.shape[1], dtype=matrix.dtype, device=matrix.device)
    y: list[Tensor] = []
    for i in range(k):
        for j in range(i + 1):
            entry = matrix[sets[:, i], sets[:, j]]
            for p in range(j):
                entry = entry.addcmul(lower[i, p], lower[j, p], value=-1)
            if i == j:
                floor = torch.finfo(entry.dtype).eps * matrix[sets[:, i], sets[:, i]]
                lower[i, i] = torch.maximum(entry, floor).sqrt()
            else:
                lower[i, j] = entry / lower[j, j]
        right = vector[sets[:, i]]
        for p in range(i):
            right = right.addcmul(lower[i, p], y[p], value=-1)
        y.append(right / lower[i, i])
        total.addcmul_(y[-1], y[-1])
    return total


def invert(matrix: Tensor) -> Tensor:
    """Inverses of symmetric positive definite matrices laid out [m, m, batch], by sweeping out one row at a time."""
    a = matrix.clone()
    for i in range(len(a)):
        pivot = a[i, i].clone()
        column = a[:, i].clone()
        scaled = column / pivot
        a.addcmul_(column[:, None], scaled[None], value=-1)
        a[:, i], a[i] = scaled, scaled
        a[i, i] = -1 / pivot
    return a.neg_()


def _share(value: Tensor, m: int, n: int, shared: int) -> Tensor:
    """Best set of each row, when the rows of a tile keep within the same columns: [tiles, rows]."""
    if comb(m, shared) > EXHAUSTIVE:
        inside = _exchange(value, m, shared) if n == 2 else _vote(value, m, n, shared)
        allowed = inside[:, _sets(m, n, value.device)].all(2)  # tiles, sets
        return value.masked_fill(~allowed.t()[:, :, None], -torch.inf).argmax(0)
    inner = _inner(m, n, shared).to(value.device)  # columns, choices within them
    worth = torch.stack([value[choices].amax(0).sum(1) for choices in inner])
    choices = inner[worth.argmax(0)].t()  # choices, tiles
    picked = value.gather(0, choices[:, :, None].expand(-1, -1, value.shape[2])).argmax(0)
    return choices.t().gather(1, picked)


@lru_cache(maxsize=64)
def _inner(m: int, n: int, shared: int) -> Tensor:
    """For every set of shared columns, the numbers of the sets of n within it."""
    number = {s: i for i, s in enumerate(combinations(range(m), n))}
    return torch.tensor([[number[s] for s in combinations(c, n)] for c in combinations(range(m), shared)])


def _exchange(value: Tensor, m: int, shared: int) -> Tensor:
    """Shared columns of each tile for 2 of m, bool [tiles, m]: added greedily, then exchanged until none helps."""
    _, tiles, rows = value.shape
    first, second = _sets(m, 2, value.device).unbind(1)
    table = value.new_full((tiles, m, m, rows), -torch.inf)  # what a row gets from keeping columns i and j
    table[:, first, second] = table[:, second, first] = value.transpose(0, 1)
    every = torch.arange(tiles, device=value.device)

    def best(rest: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The column that is best with the rest, and the sum that the rows reach with it."""
        near = torch.stack([table[every, c] for c in rest])  # rest, tiles, m, rows
        taken = torch.stack(rest, 1)  # tiles, rest
        within = near.gather(2, taken[None, :, :, None].expand(len(rest), -1, -1, rows)).amax((0, 2))  # tiles, rows
        worth = torch.maximum(near.amax(0), within[:, None]).sum(2).scatter(1, taken, -torch.inf)
        reached, column = worth.max(1)
        return column, reached

    start = value.sum(2).argmax(0)
    columns = [first[start], second[start]]
    while len(columns) < shared:
        column, reached = best(columns)
        columns.append(column)
    still = 0
    for turn in range(16 * m):
        slot = turn % shared
        column, now = best(columns[:slot] + columns[slot + 1 :])
        better = now > reached
        columns[slot] = torch.where(better, column, columns[slot])
        reached = torch.maximum(now, reached)
        still = 0 if bool(better.any()) else still + 1
        if still == shared:
            break
    return torch.zeros(tiles, m, dtype=torch.bool, device=value.device).scatter_(1, torch.stack(columns, 1), True)


def _vote(value: Tensor, m: int, n: int, shared: int) -> Tensor:
    """Shared columns of each tile, bool [tiles, m]: those that most rows would keep if they were alone."""
    wanted = one_hot(_sets(m, n, value.device)[value.argmax(0)], m)  # tiles, rows, n, m
    columns = wanted.sum((1, 2)).topk(shared, dim=1).indices
    return torch.zeros(wanted.shape[0], m, dtype=torch.bool, device=value.device).scatter_(1, columns, True)


def _pairwise(w: Tensor, inverse: Tensor, n: int) -> Tensor:
    """Take out two at a time, the pair that costs least with the rest making up for it: bool [m, batch]."""
    m, batch = w.shape
    w, f = w.clone(), inverse.clone()
    alive = torch.ones(m, batch, dtype=torch.bool, device=w.device)
    pairs, singles = _sets(m, 2, w.device), _sets(m, 1, w.device)
    every = torch.arange(batch, device=w.device)
    left = m - n
    while left:
        sets = singles if left == 1 else pairs
        cost = quadratic(f, w, sets).masked_fill(~alive[sets].all(1), torch.inf)
        gone = sets[cost.argmin(0)]  # batch, 1 or 2
        for k in range(gone.shape[1]):
            i = gone[:, k]
            row = f[i, :, every].t().contiguous()  # m, batch
            pivot = f[i, i, every]
            w.addcmul_(row, w[i, every] / pivot, value=-1)
            f.addcmul_(row[:, None], (row / pivot)[None], value=-1)
            alive[i, every] = False
            # a removed weight keeps a harmless diagonal: it is never read again
            w[i, every], f[i, :, every], f[:, i, every], f[i, i, every] = 0, 0, 0, 1
        left -= gone.shape[1]
    return alive


def _by_columns(w: Tensor, inverse: Tensor, n: int, shared: int, tiles: int) -> Tensor:
    """Too many sets to list: rows choose by pairs, and columns are ranked by the number of rows that keep them."""
    m, batch = w.shape
    wanted = _pairwise(w, inverse, n).view(m, tiles, batch // tiles)
    loss = (w.square() / inverse.diagonal(dim1=0, dim2=1).t()).view(wanted.shape)
    votes = torch.where(wanted, loss, 0).sum(2)
    columns = votes.topk(shared, dim=0).indices  # shared, tiles
    index = columns[:, :, None].expand(-1, -1, batch // tiles).reshape(shared, batch)
    small = inverse.gather(0, index[:, None].expand(-1, m, -1)).gather(1, index[None].expand(shared, -1, -1))
    kept = _pairwise(w.gather(0, index), small, n)
    return torch.zeros(m, batch, dtype=torch.bool, device=w.device).scatter_(0, index, kept)
