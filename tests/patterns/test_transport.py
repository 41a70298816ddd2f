"""Rows choose patterns, none more often than g times: against all assignments."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import _transport
from gossamer.patterns._transport import as_integers, assign

EYE = torch.eye(2)


def total(gains, choice):
    return sum(int(gains[row][p]) for row, p in enumerate(choice))


def test_by_hand():
    # both rows want pattern 0; the first loses 1 by taking the other, the second 5
    scores = torch.tensor([[[3.0, 2.0], [9.0, 4.0]]])
    assert assign(scores, EYE, 1).tolist() == [[1, 0]]
    assert assign(scores, EYE, 2).tolist() == [[0, 0]]


def test_a_chain_of_two_moves_by_hand():
    # patterns 0 and 1 are wanted by rows (0, 1) and 2; the cheapest way out: row 0 to pattern 1, row 2 to pattern 2
    scores = torch.tensor([[[10.0, 9.0, 0.0], [10.0, 0.0, 0.0], [0.0, 10.0, 9.0]]])
    assert assign(scores, torch.eye(3), 1).tolist() == [[1, 0, 2]]


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 2), st.integers(0, 999))
def test_the_best_of_all_assignments(patterns, rows, problems, seed):
    g = -(-rows // patterns)
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randint(-9, 30, (problems, rows, 3), generator=rng).float()
    choices = torch.randint(0, 2, (3, patterns), generator=rng).float()
    found = assign(scores, choices, g)
    for gains, row in zip((scores @ choices).tolist(), found.tolist(), strict=True):
        assert all(row.count(p) <= g for p in range(patterns))
        allowed = (c for c in product(range(patterns), repeat=rows) if all(c.count(p) <= g for p in range(patterns)))
        assert total(gains, row) == max(total(gains, choice) for choice in allowed)


def test_many_problems_in_batches_are_the_same(monkeypatch):
    scores = torch.rand(20, 6, 4)
    choices = torch.tensor([[1.0, 1, 0], [1, 0, 1], [0, 1, 0], [0, 0, 1]])
    together = assign(scores, choices, 2)
    monkeypatch.setattr(_transport, "_BATCH", 40)
    assert torch.equal(assign(scores, choices, 2), together)
    assert all(int((together == p).sum(1).max()) <= 2 for p in range(3))


def test_no_rows_and_no_problems():
    assert assign(torch.ones(0, 2, 2), EYE, 1).shape == (0, 2) and assign(torch.ones(2, 0, 2), EYE, 1).shape == (2, 0)


def test_scores_as_integers():
    out = as_integers(torch.tensor([[[3.0, -1.0]], [[0.0, 0.0]], [[1e-30, 5e-31]]]))
    assert out.dtype is torch.float64 and torch.equal(out, out.round())
    assert out[0].tolist() == [[3 * 2.0**28, -(2.0**28)]]  # 4 is the power of two above 3: scaled to 2 ** 30
    assert out[1].tolist() == [[0.0, 0.0]]
    assert out[2, 0, 0] / out[2, 0, 1] == pytest.approx(2, rel=1e-8) and 2.0**29 <= out[2, 0, 0] <= 2.0**30


def test_the_number_of_threads_is_put_back():
    before = torch.get_num_threads()
    assign(torch.rand(3, 2, 2), EYE, 1)
    assert torch.get_num_threads() == before
    with pytest.raises(RuntimeError):
        assign(torch.rand(3, 2, 5), EYE, 1)
    assert torch.get_num_threads() == before
