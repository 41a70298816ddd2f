"""What is kept of a call, and for which calls it is used again."""

import torch

import gossamer as gs
from gossamer.ops.ready import Ready, key_of, known


def test_a_key_says_all_that_a_plan_depends_on():
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 2)
    base = key_of("ij,jk->ik", (a, x), None)
    assert base == key_of("ij,jk->ik", (a * 2, torch.randn(4, 2)), None)
    others = [
        key_of("ij,jk->ki", (a, x), None), key_of("ij,jk->ik", (a, x.double()), None),
        key_of("ij,jk->ik", (a, torch.randn(2, 4).t()), None), key_of("ij,jk->ik", (a, x), gs.CSR()),
    ]  # fmt: skip
    assert all(base != other for other in others)


def test_gradients_are_not_kept():
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 2, requires_grad=True)
    assert key_of("ij,jk->ik", (a, x), None) == ()
    with torch.no_grad():
        assert key_of("ij,jk->ik", (a, x), None) != ()


def test_a_call_is_known_after_the_first():
    a, x = gs.from_dense(torch.eye(9), gs.CSR()), torch.randn(9, 2)
    assert known("ij,jk->ik", (a, x), None) is None
    with gs.dense_from(None):
        gs.einsum("ij,jk->ik", a, x)
        found = known("ij,jk->ik", (a, x), None)
        assert isinstance(found, Ready) and torch.equal(found((a, x)), x) and found.nbytes() >= 0
