from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from gossamer.patterns import FanIn, Unstructured

BY_HAND = torch.tensor(
    [
        [9.0, 1.0, 8.0, 2.0, 0.0, 0.0, 7.0, 3.0],
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0],
        [4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 2.0, 3.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
    ]
)


def test_by_hand() -> None:
    assert Unstructured(0.75).select(BY_HAND).int().tolist() == [  # 8 of 32: two 9, two 8, two 7, one 6, one 5
        [1, 0, 1, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    per_row = [
        [1, 0, 1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 1],
    ]
    for pattern in (Unstructured(0.75, per="row"), FanIn(0.75), FanIn(k=2)):
        assert pattern.select(BY_HAND).int().tolist() == per_row


def test_global_ranks_over_all_tensors() -> None:
    first, second = BY_HAND[:2], BY_HAND[2:].to(torch.float64)
    masks = Unstructured(0.75, per="model").select_many([first, second, torch.empty(0)])
    assert torch.equal(torch.cat(masks[:2]), Unstructured(0.75).select(BY_HAND))
    assert masks[2].shape == (0,)
    alone = Unstructured(0.75).select_many([first, second])
    assert [int(mask.sum()) for mask in alone] == [4, 4]
    assert Unstructured(0.5, per="model").select_many([]) == []


def reference(scores: list[float], kept: int) -> list[bool]:
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    return [i in set(order[:kept]) for i in range(len(scores))]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([-1.5, -0.0, 0.0, 0.5, 1.0, 2.0]), max_size=40), st.floats(0, 1))
def test_ties_keep_the_lower_index(values: list[float], fraction: float) -> None:
    kept = len(values) - round(Fraction(repr(fraction)) * len(values))
    expected = reference(values, kept)
    for dtype in (torch.float32, torch.float64):
        scores = torch.tensor(values, dtype=dtype)
        assert Unstructured(fraction).select(scores).tolist() == expected
        assert FanIn(fraction).select(scores).tolist() == expected


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_large_tensors_count_and_rank(data: DataObject) -> None:
    """Above the size from which buckets are used, with negative values, huge ones and ties."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    n = data.draw(st.integers(1 << 15, 1 << 17))
    scores = torch.randn(n, generator=generator)
    scores = (scores * data.draw(st.sampled_from([3.0, 1e-42, 1e37]))).clamp(-3e38, 3e38)
    if data.draw(st.booleans()):
        scores = scores.round()
    fraction = data.draw(st.floats(0, 1))
    mask = Unstructured(fraction).select(scores)
    kept = n - round(Fraction(repr(fraction)) * n)
    expected = torch.zeros(n, dtype=torch.bool)
    expected[scores.sort(stable=True, descending=True).indices[:kept]] = True
    assert torch.equal(mask, expected)


def test_decimal_fractions_round_half_to_even() -> None:
    # 0.35 is below 35/100 in binary, but 3.5 of 10 is what was meant: 4 go.
    assert int(Unstructured(0.35).select(torch.rand(10)).sum()) == 6
    assert int(Unstructured(0.25).select(torch.rand(10)).sum()) == 8
    assert int(Unstructured(0.9).select(torch.rand(1000)).sum()) == 100


@pytest.mark.parametrize("fraction", [-0.1, 1.5, 90, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    for make in (Unstructured, FanIn):
        with pytest.raises(ValueError, match="from 0"):
            make(fraction)


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"Did you mean 0\.9"):
        Unstructured(90)
    with pytest.raises(TypeError, match="number"):
        Unstructured("0.9")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="per must be"):
        Unstructured(0.5, per="column")  # type: ignore[arg-type]
