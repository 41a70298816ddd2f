"""The columns that a block of rows shares: by hand, and against all sets of them."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import _columns
from gossamer.patterns._columns import best_columns


def kept(scores, columns, n):
    """Sum of what rows keep of these columns: [rows, m] in whole numbers."""
    return int(scores[:, list(columns)].sort(1, descending=True).values[:, :n].sum())


def test_by_hand():
    # two rows, six columns; each keeps its best two of the four that they share
    rows = torch.tensor([[9.0, 1, 0, 0, 8, 0], [0.0, 1, 7, 6, 0, 0]])
    assert best_columns(rows.t()[:, :, None]).flatten().tolist() == [0, 2, 3, 4]


def test_among_equals_the_first_in_order():
    assert best_columns(torch.ones(7, 3, 2)).t().tolist() == [[0, 1, 2, 3]] * 2


def test_few_columns_are_all_shared():
    assert best_columns(torch.rand(3, 5, 2)).t().tolist() == [[0, 1, 2]] * 2
    assert best_columns(torch.rand(4, 5, 1)).flatten().tolist() == [0, 1, 2, 3]


@settings(max_examples=15)
@given(st.integers(5, 9), st.integers(1, 5), st.integers(1, 3), st.integers(0, 999))
def test_two_of_four_is_exact(m, rows, blocks, seed):
    scores = torch.randint(-9, 99, (m, rows, blocks), generator=torch.Generator().manual_seed(seed)).float()
    found = best_columns(scores)
    for block in range(blocks):
        own = scores[:, :, block].t()
        best = max(kept(own, four, 2) for four in combinations(range(m), 4))
        first = next(four for four in combinations(range(m), 4) if kept(own, four, 2) == best)
        assert tuple(found[:, block].tolist()) == first


@pytest.mark.parametrize(("n", "shared"), [(1, 2), (2, 3), (3, 3), (2, 5)])
def test_others_can_not_be_improved_by_one_exchange(n, shared):
    scores = torch.randint(0, 99, (8, 4, 5)).float()
    found = best_columns(scores, n, shared)
    assert found.shape == (shared, 5)
    for block in range(5):
        own, columns = scores[:, :, block].t(), found[:, block].tolist()
        assert columns == sorted(set(columns))
        reached = kept(own, columns, n)
        for gone in columns:
            for new in set(range(8)) - set(columns):
                assert kept(own, [new if c == gone else c for c in columns], n) <= reached


def test_the_better_of_two_starts():
    # from the columns with the largest sums, 0 and 4, no exchange of one reaches what 1 and 2 do
    rows = torch.tensor([[9.0, 0, 7, 0, 5], [1, 8, 5, 1, 8], [1, 1, 6, 6, 5], [3, 6, 2, 1, 1]])
    assert kept(rows, (0, 4), 1) == 25 and kept(rows, (1, 2), 1) == 27
    assert best_columns(rows.t()[:, :, None], 1, 2).flatten().tolist() == [1, 2]


def test_work_in_parts_is_the_same(monkeypatch):
    scores = torch.rand(10, 4, 23)
    one, refined = best_columns(scores), best_columns(scores, 1, 3)
    monkeypatch.setattr(_columns, "_PLANE", 8)
    monkeypatch.setattr(_columns, "_REFINE_VALUES", 100)
    assert torch.equal(best_columns(scores), one) and torch.equal(best_columns(scores, 1, 3), refined)
