"""The fixed level: the same number of places below each parent."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Fixed, check
from tests.formats._by_hand import draw, ints, lists, there_and_back

ENTRIES = [(0, 1), (0, 3), (2, 0)]


def test_entries_by_hand_as_wide_as_the_fullest_parent_needs():
    arrays, place, places = there_and_back(Fixed(), ENTRIES, 3, 4)
    assert lists(arrays) == {"crd": [[1, 3], [-1, -1], [0, -1]]} and place == [0, 1, 4] and places == 6


def test_entries_by_hand_of_a_given_width():
    arrays, place, places = there_and_back(Fixed(3), ENTRIES, 3, 4)
    assert lists(arrays) == {"crd": [[1, 3, -1], [-1, -1, -1], [0, -1, -1]]} and place == [0, 1, 6] and places == 9
    assert Fixed(3).numbers(arrays) == {"width": 3}


def test_a_coordinate_of_many_entries_takes_one_place():
    arrays, place, places = there_and_back(Fixed(), [(0, 1), (0, 1), (0, 2)], 1, 4)
    assert lists(arrays) == {"crd": [[1, 2]]} and place == [0, 0, 1] and places == 2


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 4), st.integers(0, 5))
def test_any_entries(seed, parents, size):
    entries = draw(seed, parents, size)
    fullest = max((sum(p == q for q, _ in entries) for p in range(parents)), default=0)
    arrays, _, _ = there_and_back(Fixed(), entries, parents, size)
    assert arrays["crd"].shape == (parents, fullest)


def test_prepared_arrays_hold_no_coordinate():
    arrays = Fixed().prepare(ints(1, 2), 2, 4, torch.int32)
    assert lists(arrays) == {"crd": [[-1, -1], [-1, -1]]} and arrays["crd"].dtype is torch.int32
    assert Fixed().prepare(ints(), 0, 4, torch.int32)["crd"].shape == (0, 0)


def test_the_width_is_a_promise():
    with pytest.raises(ValueError, match="a row needs 2 places, but the level has a width of 1: use a wider one"):
        Fixed(1).pack(ints(0, 0, 2), ints(1, 3, 0), 3, 4)
    with pytest.raises(ValueError, match="needs 2 places"):
        Fixed(1).prepare(ints(1, 2), 2, 4, torch.int32)
    Fixed(2).pack(ints(0, 0, 2), ints(1, 3, 0), 3, 4)


@pytest.mark.parametrize("width", [-1, 1.5, True, "2"])
def test_a_width_is_an_integer_from_0(width):
    with pytest.raises(ValueError, match=f"width={width!r} must be a non-negative integer"):
        Fixed(width)


@pytest.mark.parametrize(
    ("level", "crd", "message"),
    [
        (Fixed(), ints(0, 1, 2), "must be .3, width."),
        (Fixed(2), ints(0, 1, 2)[:, None], "1 wide, must be 2"),
        (Fixed(), ints(0, 1, 9)[:, None], "coordinates 0 .. 9, must lie in 0 .. 3"),
        (Fixed(), ints(0, 1, -2)[:, None], "a coordinate outside -1 .. 3"),
        (Fixed(), torch.tensor([[0, 1], [-1, 1], [-1, -1]]), "with its padding at the end"),
        (Fixed(), torch.tensor([[0, 1], [1, 1], [-1, -1]]), "not strictly ascending"),
    ],
)
def test_broken_promises(level, crd, message):
    with pytest.raises(ValueError, match=message):
        check(level, {"crd": crd}, 3, 4)
