import pytest
import torch

from gossamer.prune.greedy import greedy_scores
from gossamer.scores import BlockFisher


def gathered(grads, block, damp=0.1):
    fisher = BlockFisher(*grads.shape[1:], count=len(grads), block=block, damp=damp)
    for grad in grads:
        fisher.add(grad)
    return fisher


def test_greedy_is_what_a_person_would_do():
    """One weight at a time, the cheapest, exact update, again; against the loop written out."""
    w, grads = torch.randn(3, 6, dtype=torch.float64), torch.randn(12, 3, 6, dtype=torch.float64)
    inverse = gathered(grads, 6).inverse()
    scores = greedy_scores(w, inverse)
    for row in range(3):
        v, f, left, reached = w[row].clone(), inverse[row, 0].clone(), list(range(6)), 0.0
        while left:
            i = min(left, key=lambda j: float(v[j] ** 2 / f[j, j]))
            reached = max(reached, float(v[i] ** 2 / f[i, i] / 2))
            assert float(scores[row, i]) == pytest.approx(reached, rel=1e-6)
            left.remove(i)
            v -= f[:, i] * v[i] / f[i, i]
            f -= torch.outer(f[:, i], f[i]) / f[i, i]


def test_greedy_blocks_sum_over_rows():
    w, grads = torch.randn(4, 8, dtype=torch.float64), torch.randn(20, 4, 8, dtype=torch.float64)
    inverse = gathered(grads, 8).inverse()
    scores = greedy_scores(w, inverse, (2, 4))
    for top in (0, 2):
        costs = []
        for left in (0, 4):
            p = slice(left, left + 4)
            cost = sum(0.5 * w[r, p] @ torch.linalg.solve(inverse[r, 0][p, p], w[r, p]) for r in (top, top + 1))
            costs.append(float(cost))
        first = costs.index(min(costs)) * 4
        assert float(scores[top : top + 2, first : first + 4].sum()) == pytest.approx(min(costs), rel=1e-6)
