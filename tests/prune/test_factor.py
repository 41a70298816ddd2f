import pytest
import torch

from gossamer.prune.factor import factor


@pytest.mark.parametrize("n", [1, 2, 17, 64])
def test_factor(n):
    x = torch.randn(3, 2 * n, n, dtype=torch.float64)
    h = x.mT @ x
    r, note = factor(h, damp=0.1)
    assert note is None and torch.equal(r, r.triu())
    wanted = h + 0.1 * h.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * torch.eye(n, dtype=torch.float64)
    torch.testing.assert_close(r @ r.mT, wanted)


def test_singular_is_damped_and_said():
    x = torch.randn(1, 3, 40)  # rank 3 of 40
    r, note = factor(x.mT @ x, damp=0.0)
    assert r.isfinite().all() and "singular" in note and "raised" in note


def test_zero_inputs_become_the_identity_and_it_is_said():
    r, note = factor(torch.zeros(1, 4, 4), damp=0.0)
    assert torch.equal(r[0], torch.eye(4)) and "zero" in note


def test_one_dead_column_is_damped():
    x = torch.randn(1, 50, 8)
    x[..., 3] = 0
    r, note = factor(x.mT @ x, damp=0.01)
    assert note is None and r.isfinite().all() and float(r[0, 3, 3]) > 0
