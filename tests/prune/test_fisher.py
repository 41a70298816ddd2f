import pytest
import torch

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, Threshold, Unstructured
from gossamer.prune.fisher import BlockFisher
from gossamer.prune.greedy import greedy_scores
from gossamer.prune.methods import OBS, Known
from gossamer.prune.repair import least_squares, repair
from gossamer.scores import Fisher


def gathered(grads, block, damp=0.1):
    fisher = BlockFisher(*grads.shape[1:], count=len(grads), block=block, damp=damp)
    for grad in grads:
        fisher.add(grad)
    return fisher


@pytest.mark.parametrize(
    ("rows", "columns", "block", "batches"), [(3, 8, 4, 5), (2, 10, 4, 40), (1, 3, 8, 17), (5, 16, 16, 1)]
)
def test_rank_one_updates_give_the_inverse(rows, columns, block, batches):
    grads = torch.randn(batches, rows, columns, dtype=torch.float64)
    inverse = gathered(grads, block).inverse()
    damp = 0.1 * float(torch.nn.functional.pad(grads[:16], (0, -columns % block)).square().mean())
    for row in range(rows):
        for at in range(0, columns, block):
            g = grads[:, row, at : at + block]
            f = g.T @ g / batches + damp * torch.eye(g.shape[1], dtype=torch.float64)
            got = inverse[row, at // block, : g.shape[1], : g.shape[1]]
            torch.testing.assert_close(got, torch.linalg.inv(f), rtol=1e-8, atol=1e-8)


def test_agrees_with_the_score():
    grads = torch.randn(20, 6, 32, dtype=torch.float64)
    fisher = gathered(grads, 8, damp=0.5)
    damp = 0.5 * float(grads[:16].square().mean())
    torch.testing.assert_close(fisher.inverse(), Fisher(block=8, damp=damp).inverse(grads))
    torch.testing.assert_close(fisher.inverse(slice(2, 5)), fisher.inverse()[2:5])


def test_no_gradient_at_all():
    fisher = gathered(torch.zeros(3, 2, 8), 8)
    out = OBS().prune(torch.randn(2, 8), NM(2, 4), Known(fisher=fisher))
    assert out.weight.isfinite().all() and "no gradient" in out.notes[0]
    with pytest.raises(ValueError, match="damp"):
        BlockFisher(2, 8, count=1, block=8, damp=0.0)


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


PATTERNS = [
    NM(2, 4),
    VNM(4, 2, 8),
    Unstructured(0.6),
    FanIn(0.5),
    Blocks(0.5, (2, 4)),
    GroupedNM(1, 4, 2),
    Threshold(0.5),
]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("shape", [(8, 32), (7, 30)])
def test_obs_beats_magnitude_in_its_own_loss(pattern, shape):
    w = torch.randn(shape, dtype=torch.float64)
    grads = torch.randn(64, *shape, dtype=torch.float64) @ torch.randn(shape[1], shape[1], dtype=torch.float64)
    obs = OBS(block=8)
    fisher = gathered(grads, obs.block_for(pattern, *shape), damp=0.01)
    out = obs.prune(w, pattern, Known(fisher=fisher))
    assert torch.equal(out.weight != 0, out.mask)
    if pattern.sparsity_of(shape) is not None and not (isinstance(pattern, Blocks) and shape[0] % 2):
        assert abs(float(1 - out.mask.double().mean()) - pattern.sparsity_of(shape)) < 0.06
    if not isinstance(pattern, GroupedNM | Threshold):
        assert torch.equal(pattern.select(out.mask.double()), out.mask)
    block = fisher.block

    def loss(new):
        d = torch.nn.functional.pad(new - w, (0, -shape[1] % block)).view(shape[0], -1, block)
        return float(torch.einsum("rbi,rbij,rbj", d, torch.linalg.inv(fisher.inverse()), d))

    magnitude = w * pattern.select(w.abs())
    assert loss(out.weight) < loss(magnitude)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_obs_by_the_hessian_beats_sparsegpt(pattern):
    from gossamer.prune.curvature import Gram
    from gossamer.prune.methods import SparseGPT

    w, x = torch.randn(16, 64, dtype=torch.float64), torch.randn(200, 64, dtype=torch.float64)
    x = x @ torch.randn(64, 64, dtype=torch.float64)
    gram = Gram((x.T @ x)[None])
    out = OBS("hessian").prune(w, pattern, Known(gram))
    assert torch.equal(out.weight != 0, out.mask)
    other = SparseGPT().prune(w, pattern, Known(gram))
    assert abs(float(out.mask.double().mean() - other.mask.double().mean())) < 1e-9
    error = lambda new: float(gram.error((new - w)[None]))
    assert error(out.weight) < (1.0 if isinstance(pattern, Threshold) else 1.1) * error(other.weight)


def test_least_squares_reaches_the_minimum_and_never_hurts():
    w, x = torch.randn(5, 12, dtype=torch.float64), torch.randn(40, 12, dtype=torch.float64)
    h = x.T @ x
    mask = torch.rand(5, 12) < 0.5
    start = w * mask
    error = lambda new: ((new - w) @ h * (new - w)).sum(1)
    before = error(start)
    for steps in (1, 2, 5, 30):
        new = least_squares(w[None], start[None], mask[None], h[None], steps)[0]
        assert (error(new) <= before + 1e-9).all() and not new[~mask].any()
        before = error(new)
    for row in range(5):
        k = mask[row]
        best = torch.linalg.solve(h[k][:, k], (h @ w[row])[k])
        torch.testing.assert_close(new[row, k], best, rtol=1e-5, atol=1e-7)
    zero = least_squares(w[None], start[None], mask[None], torch.zeros(1, 12, 12, dtype=torch.float64), 3)[0]
    assert torch.equal(zero, start)
