import pytest
import torch

from gossamer.prune.gram import Gram
from gossamer.prune.repair import _PULL, follow, least_squares, repair
from gossamer.scores import BlockFisher


def gathered(grads, block, damp=0.1):
    fisher = BlockFisher(*grads.shape[1:], count=len(grads), block=block, damp=damp)
    for grad in grads:
        fisher.add(grad)
    return fisher


def loss_after_best_repair(w, new_mask, f):
    """min 1/2 d^T F d over all changes d that zero what goes."""
    gone, kept = ~new_mask, new_mask
    d = torch.where(gone, -w, torch.zeros_like(w))
    if kept.any() and gone.any():
        d[kept] = -torch.linalg.solve(f[kept][:, kept], f[kept][:, gone] @ d[gone])
    return float(0.5 * d @ f @ d), w + d


def test_repair_is_the_closed_form():
    grads = torch.randn(30, 4, 16, dtype=torch.float64)
    fisher = gathered(grads, 8)
    w, mask = torch.randn(4, 16, dtype=torch.float64), torch.rand(4, 16) < 0.4
    new = repair(w, mask, fisher.inverse())
    for row in range(4):
        for b in range(2):
            part = slice(8 * b, 8 * b + 8)
            f = torch.linalg.inv(fisher.inverse()[row, b])
            torch.testing.assert_close(new[row, part], loss_after_best_repair(w[row, part], mask[row, part], f)[1])


def test_least_squares_reaches_the_minimum_and_never_hurts():
    w, x = torch.randn(5, 12, dtype=torch.float64), torch.randn(40, 12, dtype=torch.float64)
    h = x.T @ x
    mask = torch.rand(5, 12) < 0.5
    start = w * mask
    error = lambda new: ((new - w) @ h * (new - w)).sum(1)
    before = error(start)
    for steps in (1, 2, 5, 30):
        new = least_squares(w, start, mask, Gram(h[None]), steps)
        assert (error(new) <= before + 1e-9).all() and not new[~mask].any()
        before = error(new)
    for row in range(5):
        k = mask[row]
        best = torch.linalg.solve(h[k][:, k], (h @ w[row])[k])
        torch.testing.assert_close(new[row, k], best, rtol=1e-5, atol=1e-7)
    zero = least_squares(w, start, mask, Gram(torch.zeros(1, 12, 12, dtype=torch.float64)), 3)
    assert torch.equal(zero, start)


@pytest.mark.parametrize("groups", [1, 3])
def test_follow_is_the_minimum_with_a_pull(groups):
    """By the normal equations of |new X - w X_dense|^2 + p |new - w|^2, group by group."""
    x, dense = torch.randn(2, groups, 50, 6, dtype=torch.float64)
    w = torch.randn(groups * 4, 6, dtype=torch.float64)
    gram = Gram()
    gram.add(x, dense)
    new = follow(w, gram).view(groups, 4, 6)
    for g, (a, b) in enumerate(zip(x, dense, strict=True)):
        h, own = a.T @ a, w.view(groups, 4, 6)[g]
        pull = _PULL * h.diagonal().mean()
        slope = (new[g] @ a.T - own @ b.T) @ a + pull * (new[g] - own)
        assert slope.abs().max() < 1e-9


def test_follow_leaves_a_weight_whose_inputs_have_not_moved():
    x, w = torch.randn(1, 30, 5), torch.randn(3, 5)
    gram = Gram()
    gram.add(x, x.clone())
    assert torch.equal(follow(w, gram), w)
    nothing = Gram()
    nothing.add(torch.zeros(1, 4, 5), torch.randn(1, 4, 5))
    assert torch.equal(follow(w, nothing), w)
