"""Softmax is over the stored entries: a place that is not stored is a choice that is not there."""

import math

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.join import from_entries
from tests.formats_under_test import ALL
from tests.ops.against_dense import SHAPES, check_gradients, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)


def expected(f, t, dim, gone):
    """The dense function with minus infinity where nothing is stored."""
    filled = t.to_dense().masked_fill(~t.mask(), gone)
    return f(filled, dim=dim).masked_fill(~t.mask(), 0)


@pytest.mark.parametrize("format", [f for f in ALL if f.any_pattern], ids=repr)
def test_by_hand(format):
    keys, scores = torch.tensor([0, 2, 5]), torch.tensor([0.0, math.log(3), 7.0])
    t = from_entries(keys, scores, (3, 3), format)  # rows: (0, -, log 3), (-, -, 7), nothing
    out = torch.softmax(t, 1)
    assert out.structure.same(t.structure)
    torch.testing.assert_close(out.to_dense(), torch.tensor([[0.25, 0, 0.75], [0, 0, 1], [0, 0, 0]]))
    torch.testing.assert_close(torch.log_softmax(t, 1).to_dense()[0, 0], torch.tensor(math.log(0.25)))
    torch.testing.assert_close(F.softmin(t, 1).to_dense()[0, 0], torch.tensor(0.75))


@formats
@pytest.mark.parametrize("shape", [s for s in SHAPES if 0 not in s], ids=str)
@pytest.mark.parametrize("dim", [0, -1])
def test_against_dense_with_minus_infinity(format, shape, dim):
    t = sample(shape, format)
    for f, gone in ((torch.softmax, -torch.inf), (torch.log_softmax, -torch.inf), (F.softmin, torch.inf)):
        with gs.fallback("error"):
            out = f(t, dim=dim)
        torch.testing.assert_close(out.to_dense(), expected(f, t, dim, gone))
        check_gradients(lambda t, f=f: f(t, dim=dim), t)


@formats
def test_every_spelling_is_the_same(format):
    t = sample((4, 6), format)
    once = torch.softmax(t, 1).to_dense()
    for other in (
        t.softmax(1),
        F.softmax(t, 1),
        F.softmax(t, dim=-1),
        torch.nn.Softmax(1)(t),
        torch.special.softmax(t, 1),
    ):
        assert torch.equal(other.to_dense(), once)
    torch.testing.assert_close(torch.sparse.softmax(t, 1).to_dense(), once)
    torch.testing.assert_close(torch.sparse.log_softmax(t, 1).to_dense(), torch.log_softmax(t, 1).to_dense())


def test_large_scores_do_not_overflow():
    t = gs.from_dense(torch.tensor([[1000.0, 0.0, 1000.0]]), gs.CSR())
    assert torch.softmax(t, 1).to_dense().tolist() == [[0.5, 0.0, 0.5]]


def test_the_type_can_be_asked_for():
    t = gs.from_dense(torch.eye(3), gs.CSR())
    assert torch.softmax(t, 1, dtype=torch.float64).dtype == torch.float64


def test_attention_with_a_sparse_mask_is_dense_attention_with_minus_infinity():
    q, k, v = (torch.randn(6, 4, dtype=torch.float64) for _ in range(3))
    allowed = torch.ones(6, 6, dtype=torch.bool).tril()
    pattern = gs.from_dense(allowed.double(), gs.CSR())
    scores = pattern * (q @ k.t() / 2)
    got = torch.softmax(scores, -1) @ v
    torch.testing.assert_close(got, F.scaled_dot_product_attention(q, k, v, attn_mask=allowed))
