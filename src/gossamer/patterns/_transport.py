"""Many small transportation problems at once: rows choose patterns, and no pattern may be chosen more than g times.

Exact, by successive shortest paths. First every row gets its best pattern. While some pattern is overfull, rows are
moved along the cheapest chain (a row of an overfull pattern p moves to q, a row of q moves to r, ... until a pattern
with room), which keeps the choice optimal for its counts at every step. The graph has one node per pattern, so a round
of Bellman-Ford costs O(P^2). A chain is needed for each row in excess: about 0.4 P sqrt(g) per problem for independent
scores, and (P - 1) g if all rows prefer the same pattern. All problems advance together, one chain each per round.

Gains are integers in float64: sums are exact, so rounding can't create profitable cycles, and the answer is the same on
every machine. They are rounded to 30 bits below the largest score of their problem: "exact" means up to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_BITS = 30  # of the largest score; leaves 23 bits of float64 for sums over positions, along a chain, and tolls
_BATCH = 1 << 19  # gains at a time: 4 MiB, so that the working set stays near the cache


def as_integers(scores: Tensor) -> Tensor:
    """Scores [problems, rows, m] as integers in float64, scaled by a power of two for each problem."""
    scores = scores.double()
    top = scores.abs().amax((1, 2), keepdim=True)
    mantissa = torch.frexp(top).mantissa
    scale = torch.where(top > 0, top / mantissa, 1.0)  # the power of two above top, exactly
    return torch.round(scores / scale * 2.0**_BITS)


def assign(scores: Tensor, choices: Tensor, g: int) -> Tensor:
    """The pattern of each row: none is used by more than g rows, and the sum of kept scores is the largest possible.

    Parameters
    ----------
    scores
        [problems, rows, m], finite.
    choices
        [m, P], 1 where pattern p keeps position i. P * g >= rows.
    g
        How many rows of a problem may use the same pattern.

    Returns
    -------
    Tensor
        [problems, rows], int64.
    """
    problems, rows, _ = scores.shape
    count = choices.shape[1]
    answer = torch.zeros(problems, rows, dtype=torch.int64, device=scores.device)
    if answer.numel() == 0:
        return answer
    step = max(1, _BATCH // (max(rows, count) * count))
    with _one_thread():
        for start in range(0, problems, step):
            gains = as_integers(scores[start : start + step]) @ choices.double()
            answer[start : start + step] = _solve(gains, g)
    return answer


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch's operators on one thread, in this thread of Python.

    A round is a dozen operators of some microseconds. Two threads would meet at a barrier after each, and spin there
    while another process has their core: on a busy machine 768x768 at 3:6:g4 took 15 s with two and 0.6 s with one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _solve(gains: Tensor, g: int) -> Tensor:
    """Rounds of chains until no pattern is overfull; problems that are done drop out."""
    answer = gains.argmax(2)
    left = torch.arange(len(gains), device=gains.device)
    taken = answer.clone()
    while True:
        counts = _counts(taken, gains.shape[2])
        busy = (counts > g).any(1)
        if not bool(busy.all()):
            answer[left] = taken
            left, taken, gains, counts = left[busy], taken[busy], gains[busy], counts[busy]
            if len(left) == 0:
                return answer
        taken = _move_along_chains(gains, taken, counts, g)


def _counts(taken: Tensor, patterns: int) -> Tensor:
    counts = torch.zeros(len(taken), patterns, dtype=torch.int64, device=taken.device)
    return counts.scatter_add_(1, taken, torch.ones_like(taken))


def _move_along_chains(gains: Tensor, taken: Tensor, counts: Tensor, g: int) -> Tensor:
    """One cheapest chain in each problem, from an overfull pattern to one with room; among equals the shortest."""
    problems, _, patterns = gains.shape
    # loss[b, r, q]: what moving row r from its pattern to q costs; edges[b, p, q]: the cheapest such row of p.
    loss = gains.gather(2, taken[:, :, None]) - gains
    edges = torch.full((problems, patterns, patterns), torch.inf, dtype=loss.dtype, device=loss.device)
    edges.scatter_reduce_(1, taken[:, :, None].expand_as(loss), loss, "amin")
    # Making room for a toll of 1 per move leaves no cycle of cost 0, in which following parents could turn for ever.
    tolled = edges.transpose(1, 2).mul(2.0 ** patterns.bit_length()).add_(1).contiguous()
    distance, parent = _shortest(tolled, counts > g)
    node = distance.masked_fill(counts >= g, torch.inf).argmin(1)
    moved = taken.clone()
    each = torch.arange(problems, device=gains.device)
    while True:
        before = parent[each, node]
        going = before >= 0
        if not bool(going.any()):
            return moved
        each, node, before = each[going], node[going], before[going]
        # Chosen among the rows that were there at the start: a chain visits a pattern once, so none is moved twice.
        cost = loss[each, :, node].masked_fill(taken[each] != before[:, None], torch.inf)
        moved[each, cost.argmin(1)] = node
        node = before


def _shortest(edges: Tensor, sources: Tensor) -> tuple[Tensor, Tensor]:
    """Bellman-Ford from all sources over edges [problems, to, from]: distance and parent (-1 at a source) of each.

    An optimal choice has no negative cycle, so this ends after at most P rounds.
    """
    start = torch.where(sources, 0.0, torch.inf).to(edges.dtype)
    distance, left = start.clone(), torch.arange(len(edges), device=edges.device)
    near, ways = distance, edges
    while len(left):
        closer = torch.minimum(near, (near[:, None, :] + ways).amin(2))
        open_ = (closer < near).any(1)
        distance[left] = closer
        # Most problems settle in a few rounds; copying the rest pays once they are the minority.
        if 2 * int(open_.sum()) <= len(left):
            left, near, ways = left[open_], closer[open_], ways[open_]
        else:
            near = closer
    parent = (distance[:, None, :] + edges).argmin(2)
    return distance, torch.where(distance < start, parent, -1)
