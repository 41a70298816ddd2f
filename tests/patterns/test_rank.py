"""The k highest scores, exactly k, the lower index first among equals."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import _rank
from gossamer.patterns._rank import _by_comparison, _by_distance, keep_top, keep_top_rows, tame, tree_sum


def reference(flat, k):
    """The mask by a sort: highest first, then by index."""
    order = sorted(range(len(flat)), key=lambda i: (-flat[i], i))[:k]
    return [i in order for i in range(len(flat))]


def test_by_hand_with_ties():
    scores = torch.tensor([[1.0, 3.0, 2.0], [2.0, 3.0, 2.0]])
    assert keep_top(scores, 3).tolist() == [[False, True, True], [False, True, False]]
    assert keep_top_rows(scores, 2).tolist() == [[False, True, True], [True, True, False]]


@settings(max_examples=40)
@given(st.lists(st.integers(-3, 3), max_size=12), st.integers(-1, 13))
def test_any_scores(numbers, k):
    scores = torch.tensor(numbers, dtype=torch.float32)
    want = reference(numbers, max(k, 0))
    assert keep_top(scores, k).tolist() == want
    assert keep_top_rows(scores[None], k).tolist() == [want]


@pytest.mark.parametrize("k", [1, 5, 49, 50, 51, 99])
def test_rows_with_few_or_many_kept(k):
    scores = torch.randint(0, 20, (7, 100)).float()
    assert keep_top_rows(scores, k).tolist() == [reference(row, k) for row in scores.tolist()]
    assert keep_top_rows(scores.t().contiguous().t(), k).tolist() == keep_top_rows(scores, k).tolist()


@pytest.mark.parametrize("k", [1, 2, 300, 32767, 40000])
def test_counting_by_buckets_is_the_k_th_smallest(k):
    assert _rank._BUCKETS_FROM <= 40000
    flat = torch.randn(40000)
    flat[:5] = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1e-42])
    assert _rank._kth_smallest(flat, k) == flat.sort().values[k - 1]
    wide = torch.randn(40000, 2)[:, 1]
    assert _rank._kth_smallest(wide, k) == wide.sort().values[k - 1]


def test_large_tensors_keep_exactly_k_with_the_lower_index_first():
    scores = torch.zeros(200, 200)
    scores.view(-1)[7::100] = 1.0  # 400 ones
    mask = keep_top(scores, 405)
    assert mask.view(-1)[:5].all() and int(mask.sum()) == 405 and bool(mask.view(-1)[7::100].all())


def test_empty():
    assert keep_top(torch.ones(0), 3).shape == (0,) and keep_top_rows(torch.ones(0, 3), 2).shape == (0, 3)


def test_a_tree_of_additions_in_a_fixed_order():
    x = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])
    assert tree_sum(x, 0) == 31.0  # (1 + 4 + 16) + (2 + 8)
    big = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert tree_sum(big, 0) == 2.0  # (1e8 - 1e8) + (1 + 1): halves, not neighbours
    assert tree_sum(torch.ones(2, 3, 4), 1).tolist() == [[3.0] * 4] * 2
    assert tree_sum(torch.ones(0, 2), 0).tolist() == [0.0, 0.0] and tree_sum(x[:1], 0) == 1.0
    kept = x.clone()
    tree_sum(x, 0)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tamed_scores_can_be_added(dtype):
    out = tame(torch.tensor([torch.inf, -torch.inf, 3.0], dtype=dtype))
    assert out[2] == 3.0 and out[0] == -out[1] > 1e30 and torch.isfinite(out[0] * 2**23)


@pytest.mark.parametrize("rank", [_by_comparison, _by_distance])
def test_comparison_by_hand(rank) -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert rank(scores, 2).int().tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert rank(scores, 1).int().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


@given(rows=st.integers(1, 9), columns=st.integers(2, 32), k=st.integers(1, 31), seed=st.integers(0, 99))
def test_comparison_of_all_pairs_finds_what_a_sort_does(rows: int, columns: int, k: int, seed: int) -> None:
    scores = torch.randint(4, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    scores[0, 0], scores[-1, -1] = torch.inf, -torch.inf
    want = [reference(row, k) for row in scores.tolist()]
    assert _by_comparison(scores, k).tolist() == _by_distance(scores, k).tolist() == want
