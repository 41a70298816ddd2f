"""Exactly k stay, the lower index first among equals, however they are found."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.patterns._rank import _by_comparison, keep_top_rows


def test_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]])
    assert _by_comparison(scores, 2).int().tolist() == [[0, 1, 1, 0], [1, 1, 0, 0]]
    assert _by_comparison(scores, 1).int().tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]


@given(rows=st.integers(1, 9), columns=st.integers(2, 17), k=st.integers(1, 16), seed=st.integers(0, 99))
def test_comparison_of_all_pairs_finds_what_the_kth_value_does(rows: int, columns: int, k: int, seed: int) -> None:
    scores = torch.randint(4, (rows, columns), generator=torch.Generator().manual_seed(seed)).float()
    scores[0, 0] = torch.inf
    assert torch.equal(_by_comparison(scores, k), keep_top_rows(scores, k))
