from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.patterns import FanIn, Unstructured


def test_by_hand() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0], [0.0, -1.0, -2.0, -3.0]])
    expected = [[0, 1, 0, 1], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert FanIn(k=2).select(scores).int().tolist() == FanIn(0.5).select(scores).int().tolist() == expected
    assert not FanIn(k=0).select(scores).any()


@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1))
def test_every_row_keeps_the_same(rows: int, columns: int, fraction: float) -> None:
    scores = torch.randint(0, 3, (rows, columns)).float()
    mask = FanIn(fraction).select(scores)
    assert mask.sum(1).tolist() == [FanIn(fraction).kept(columns)] * rows
    assert torch.equal(mask, Unstructured(fraction, per="row").select(scores))


def test_errors() -> None:
    for bad in ({}, {"sparsity": 0.5, "k": 3}):
        with pytest.raises(ValueError, match="one of sparsity and k"):
            FanIn(**bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rows have 4 columns"):
        FanIn(k=5).select(torch.rand(2, 4))
    with pytest.raises(ValueError, match="at least 0"):
        FanIn(k=-1)
