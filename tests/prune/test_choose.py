from itertools import combinations

import pytest
import torch

from gossamer.patterns import VNM
from gossamer.prune import choose
from gossamer.prune.choose import best_sets, invert, quadratic


def spd(*batch, m):
    a = torch.randn(*batch, m, 2 * m, dtype=torch.float64)
    return a @ a.mT / m


def loss(w, inverse, gone):
    """1/2 w_P^T ((F^-1)_PP)^-1 w_P, as it is written."""
    p = list(gone)
    return 0.5 * w[p] @ torch.linalg.solve(inverse[p][:, p], w[p]) if p else torch.tensor(0.0, dtype=w.dtype)


def row_loss(w, inverse, kept):
    return float(loss(w, inverse, [i for i in range(len(w)) if i not in kept]))


@pytest.mark.parametrize(("n", "m"), [(1, 2), (2, 4), (1, 4), (3, 4), (2, 5), (2, 8), (5, 8), (4, 8)])
def test_every_set_was_considered(n, m):
    w, f = torch.randn(6, 1, m, dtype=torch.float64), spd(6, 1, m=m)
    mask = best_sets(w, f, n)
    for t in range(6):
        best = min(combinations(range(m), n), key=lambda k: row_loss(w[t, 0], f[t, 0], k))
        assert mask[t, 0].nonzero().flatten().tolist() == list(best)


@pytest.mark.parametrize(("v", "m"), [(3, 5), (4, 8)])
def test_shared_columns_by_brute_force(v, m):
    w, f = torch.randn(3, v, m, dtype=torch.float64), spd(3, v, m=m)
    mask = best_sets(w, f, 2, shared=4)
    for t in range(3):

        def best_rows(columns, t=t):
            return [min(combinations(columns, 2), key=lambda k: row_loss(w[t, r], f[t, r], k)) for r in range(v)]

        def total(columns, t=t):
            return sum(row_loss(w[t, r], f[t, r], k) for r, k in enumerate(best_rows(columns)))

        columns = min(combinations(range(m), 4), key=total)
        assert [tuple(mask[t, r].nonzero().flatten().tolist()) for r in range(v)] == best_rows(columns)


def test_the_identity_gives_magnitude():
    w = torch.randn(40, 16, 8)
    eye = torch.eye(8)[None, None]
    tall = w.transpose(0, 1).reshape(16, -1)  # VNM sees 16 rows of 40 groups
    mask = best_sets(w, eye, 2, shared=4).transpose(0, 1).reshape(16, -1)
    assert torch.equal(mask, VNM(16, 2, 8).select(tall.square()))


def test_one_inverse_for_all_rows_is_the_same_as_many():
    w, f = torch.randn(5, 4, 8, dtype=torch.float64), spd(1, 1, m=8)
    assert torch.equal(best_sets(w, f, 2, 4), best_sets(w, f.expand(5, 4, 8, 8).contiguous(), 2, 4))


def test_beyond_the_limit_pairs_come_close(monkeypatch):
    w, f = torch.randn(200, 1, 10, dtype=torch.float64), spd(200, 1, m=10)
    exact = best_sets(w, f, 4)
    monkeypatch.setattr(choose, "EXHAUSTIVE", 1)
    pairs = best_sets(w, f, 4)
    assert (pairs.sum(2) == 4).all()
    cost = lambda mask: sum(row_loss(w[t, 0], f[t, 0], mask[t, 0].nonzero().flatten().tolist()) for t in range(200))
    by_magnitude = torch.zeros_like(exact).scatter_(2, w.abs().topk(4, dim=2).indices, True)
    assert cost(exact) <= cost(pairs) <= 1.1 * cost(exact) < cost(by_magnitude)


def test_shared_columns_beyond_the_limit(monkeypatch):
    w, f = torch.randn(20, 8, 9, dtype=torch.float64), spd(20, 8, m=9)
    exact = best_sets(w, f, 2, 4)
    monkeypatch.setattr(choose, "EXHAUSTIVE", 100)  # 36 pairs may be listed, 126 sets of columns may not
    near = best_sets(w, f, 2, 4)
    monkeypatch.setattr(choose, "EXHAUSTIVE", 10)
    rough = best_sets(w, f, 2, 4)
    costs = []
    for mask in (exact, near, rough):
        assert (mask.sum(2) == 2).all() and (mask.any(1).sum(1) <= 4).all()
        costs.append(
            sum(
                row_loss(w[t, r], f[t, r], mask[t, r].nonzero().flatten().tolist()) for t in range(20) for r in range(8)
            )
        )
    assert costs[0] <= costs[1] <= 1.02 * costs[0] and costs[2] <= 1.5 * costs[0]


def test_shared_columns_of_three_beyond_the_limit(monkeypatch):
    w, f = torch.randn(10, 6, 8, dtype=torch.float64), spd(10, 6, m=8)
    monkeypatch.setattr(choose, "EXHAUSTIVE", 60)  # 56 sets of 3 may be listed, 70 sets of 4 columns may not
    mask = best_sets(w, f, 3, 4)
    assert (mask.sum(2) == 3).all() and (mask.any(1).sum(1) <= 4).all()


def test_small_linear_algebra():
    a = spd(7, m=5).permute(1, 2, 0).contiguous()
    b = torch.randn(5, 7, dtype=torch.float64)
    for t in range(7):
        torch.testing.assert_close(invert(a)[..., t], torch.linalg.inv(a[..., t]))
    sets = torch.tensor([[0, 2, 4], [1, 2, 3]])
    got = quadratic(a, b, sets)
    for s, p in enumerate(sets.tolist()):
        for t in range(7):
            m, v = a[p][:, p, t], b[p, t]
            torch.testing.assert_close(got[s, t], v @ torch.linalg.solve(m, v))


def test_keeping_all_and_nothing_to_do():
    assert best_sets(torch.randn(2, 1, 4), torch.eye(4)[None, None], 4).all()
    assert best_sets(torch.randn(0, 1, 4), torch.eye(4)[None, None], 2).shape == (0, 1, 4)
