"""The level of packed tiles: one bit for each coordinate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Bits, check
from tests.formats._by_hand import draw, ints, lists, there_and_back


def test_entries_by_hand():
    arrays, place, places = there_and_back(Bits(), [(0, 0), (0, 31), (0, 32), (2, 63)], 3, 64)
    assert lists(arrays) == {"pos": [0, 3, 3, 4], "bits": [1 - 2**31, 1, 0, 0, 0, -(2**31)]}
    assert place == [0, 1, 2, 3] and places == 4


def test_entries_with_the_same_coordinate_share_a_place():
    arrays, position, places = Bits().pack(ints(0, 0, 1), ints(5, 5, 5), 2, 32)
    assert position.tolist() == [0, 0, 1] and places == 2 and arrays["pos"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(("parents", "size"), [(0, 64), (3, 0), (0, 0), (2, 32)])
def test_nothing(parents, size):
    arrays, _, places = there_and_back(Bits(), [], parents, size)
    assert places == 0 and arrays["pos"].tolist() == [0] * (parents + 1)


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 4), st.sampled_from([32, 96, 640]))
def test_any_entries(seed, parents, size):
    there_and_back(Bits(), draw(seed, parents, size), parents, size)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Bits takes coordinates in steps of 32, not 33"):
        Bits().check_sizes(1, 33)
    arrays, _, _ = Bits().pack(ints(0, 1), ints(5, 6), 2, 32)
    for pos in ([0, 2, 2], [0, 1, 1], [1, 2, 2]):
        with pytest.raises(ValueError, match="pos does not agree with the bits of each parent"):
            check(Bits(), {**arrays, "pos": torch.tensor(pos, dtype=torch.int32)}, 2, 32)
