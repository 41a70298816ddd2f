"""Patterns a few columns at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.patterns import NM, VNM, Blocks, KeepAll, Threshold, Unstructured
from gossamer.prune.portions import Portions, keep_few


def test_few_columns_by_hand():
    scores = torch.tensor([[2.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]]).t()[None]
    mask = keep_few(scores, 2)[0].t()
    assert mask.int().tolist() == [[1, 0, 1, 0], [1, 1, 0, 0], [0, 0, 1, 1]]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 8))
def test_few_columns_are_the_highest_the_lower_first(numbers, n):
    mask = keep_few(torch.tensor(numbers).float()[None, :, None], n).flatten().tolist()
    order = sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))[:n]
    assert mask == [i in order for i in range(len(numbers))]


@pytest.mark.parametrize(
    ("pattern", "near", "width"),
    [
        (Unstructured(0.5), 128, 128),
        (NM(2, 4), 128, 4),
        (NM(1, 16), 8, 16),
        (Blocks(0.5, (4, 6)), 128, 126),  # whole blocks
        (Blocks(0.5, (4, 6)), 3, 6),
    ],
    ids=str,
)
def test_how_many_columns_at_a_time(pattern, near, width):
    assert Portions(pattern, 16, 256, near).width == width


def test_patterns_that_can_not_be_split():
    for pattern in (KeepAll(), Threshold(0.1)):
        portions = Portions(pattern, 16, 256)
        assert portions.width == 0 or pattern.ranks


@pytest.mark.parametrize("pattern", [NM(2, 4), NM(3, 16), VNM(4, 2, 8)], ids=str)
def test_portions_are_what_the_pattern_keeps_of_the_whole(pattern):
    rows, columns = 8, 32
    scores = torch.rand(rows, columns)
    portions = Portions(pattern, rows, columns, near=16)
    step = portions.width
    assert step and columns % step == 0
    parts = [portions.select(scores[:, at : at + step].t()[None], at)[0].t() for at in range(0, columns, step)]
    assert torch.equal(torch.cat(parts, 1), pattern.select(scores))


def test_fractions_add_up_over_the_portions():
    portions = Portions(Unstructured(0.5), 1, 6, near=3)
    scores = torch.tensor([1.0, 2.0, 3.0])[None, :, None]
    kept = [portions.select(scores, at).flatten().tolist() for at in (0, 3)]
    assert kept == [[False, False, True], [False, True, True]]  # 3 of 6 in all
