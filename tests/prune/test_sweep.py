"""The sweep against SparseGPT as published: invert H, Cholesky factor, update all columns to the right of each."""

import pytest
import torch

from gossamer.patterns import NM, VNM, Blocks, FanIn, GroupedNM, Unstructured
from gossamer.prune.factor import factor
from gossamer.prune.gram import Gram
from gossamer.prune.methods import Known
from gossamer.prune.sparsegpt import SparseGPT
from gossamer.prune.sweep import refit, sweep


def published(weight, hessian, choose, width):
    """fasterprune() of the paper's code, without blocks: float64, one row after the other would give the same."""
    w = weight.clone()
    u = torch.linalg.cholesky(torch.linalg.inv(hessian), upper=True)
    mask = torch.ones_like(w, dtype=torch.bool)
    for j in range(w.shape[1]):
        if j % width == 0:
            stop = min(j + width, w.shape[1])
            mask[:, j:stop] = choose(w[:, j:stop] ** 2 / u.diagonal()[j:stop] ** 2, j)
        lost = torch.where(mask[:, j], 0, w[:, j]) / u[j, j]
        w[:, j:] -= lost[:, None] * u[j, j:]
        w[~mask[:, j], j] = 0
    return w, mask


def problem(rows, columns, dtype=torch.float64):
    x = torch.randn(4 * columns, columns, dtype=dtype) @ torch.randn(columns, columns, dtype=dtype)
    h = x.T @ x
    return torch.randn(rows, columns, dtype=dtype), h + 0.01 * h.diagonal().mean() * torch.eye(columns, dtype=dtype)


@pytest.mark.parametrize("shape", [(1, 4), (3, 8), (5, 36), (7, 130), (4, 300)])
@pytest.mark.parametrize("pattern", [NM(2, 4), NM(1, 3), NM(3, 20), NM(2, 80)], ids=str)
def test_nm_as_published(pattern, shape):
    weight, hessian = problem(*shape)
    want, mask = published(weight, hessian, lambda s, at: pattern.select(s), pattern.m)
    out = SparseGPT(damp=0).prune(weight, pattern, Known(Gram(hessian[None])))
    assert torch.equal(out.mask, mask)
    torch.testing.assert_close(out.weight, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 40), (5, 128), (5, 300)])
def test_unstructured_as_published(shape):
    weight, hessian = problem(*shape)
    gone = lambda columns: round(0.6 * shape[0] * columns)

    def choose(scores, at):
        lose = gone(at + scores.shape[1]) - gone(at)
        mask = torch.ones(scores.numel(), dtype=torch.bool)
        mask[scores.flatten().argsort()[:lose]] = False
        return mask.view(scores.shape)

    want, mask = published(weight, hessian, choose, 128)
    out = SparseGPT(damp=0).prune(weight, Unstructured(0.6), Known(Gram(hessian[None])))
    assert torch.equal(out.mask, mask) and int((~mask).sum()) == gone(shape[1])
    torch.testing.assert_close(out.weight, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("block", [4, 16, 48, 1000])
def test_blocks_change_nothing(block):
    weight, hessian = problem(5, 64)
    r, _ = factor(hessian[None], 0)

    def choose(now, here, at):
        return NM(2, 4).select(now[0].T.abs()).T[None]

    want = sweep(weight[None], r, choose, width=4)
    out = sweep(weight[None], r, choose, width=4, block=block)
    assert torch.equal(out.mask, want.mask)
    torch.testing.assert_close(out.weight, want.weight)


@pytest.mark.parametrize(
    "pattern",
    [VNM(4, 2, 8), GroupedNM(1, 4, 2), FanIn(0.7), FanIn(k=5), Blocks(0.5, (2, 4)), Unstructured(0.5, per="row")],
)
@pytest.mark.parametrize("shape", [(8, 48), (9, 150)])
def test_other_patterns_hold_and_beat_no_repair(pattern, shape):
    weight, hessian = problem(*shape)
    out = SparseGPT().prune(weight, pattern, Known(Gram(hessian[None])))
    assert torch.equal(out.weight != 0, out.mask)
    if not (isinstance(pattern, Blocks) and shape[0] % 2):  # blocks cut off at the edge are smaller
        assert abs(1 - out.mask.double().mean() - pattern.sparsity_of(shape)) < 0.02
    if not isinstance(pattern, GroupedNM) or shape[1] % 4 == 0:
        assert torch.equal(pattern.select(out.mask.float()), out.mask)  # the mask is one the pattern allows
    error = lambda w: float(((w - weight) @ hessian * (w - weight)).sum())
    assert error(out.weight) < error(weight * out.mask)


def test_groups_of_a_convolution_are_apart():
    one, two = problem(4, 12), problem(4, 12)
    gram = Gram(torch.stack([one[1], two[1]]))
    both = SparseGPT(damp=0).prune(torch.cat([one[0], two[0]]), NM(2, 4), Known(gram))
    for part, (weight, hessian) in zip(both.weight.split(4), (one, two), strict=True):
        alone = SparseGPT(damp=0).prune(weight, NM(2, 4), Known(Gram(hessian[None])))
        torch.testing.assert_close(part, alone.weight)


def test_refit_is_the_best_there_is():
    weight, hessian = problem(6, 10)
    mask = torch.rand(6, 10) < 0.5
    r, _ = factor(hessian[None], 0)
    new = refit(weight.T[None], r, mask.T[None])[0].T
    for row in range(6):
        k = mask[row]
        best = torch.linalg.solve(hessian[k][:, k], (hessian @ weight[row])[k])
        torch.testing.assert_close(new[row, k], best, rtol=1e-6, atol=1e-8)
    assert not new[~mask].any()


def test_float32_stays_close():
    weight, hessian = problem(64, 256)
    wide = SparseGPT().prune(weight, NM(2, 4), Known(Gram(hessian[None])))
    out = SparseGPT().prune(weight.float(), NM(2, 4), Known(Gram(hessian[None].float())))
    error = lambda w: float(((w - weight) @ hessian * (w - weight)).sum())
    assert error(out.weight.double()) < 1.01 * error(wide.weight)
