"""The level of near lanes: distances in half a byte."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import NearLanes, check
from gossamer.formats.levels.halves import halves, paired
from gossamer.formats.levels.near_lanes import near_entries
from tests.formats._by_hand import draw, ints, there_and_back


def lane(arrays, n):
    return halves(arrays["crd"]).view(-1, 16)[:, n].tolist()


def test_distances_by_hand():
    entries = [(0, 4), (0, 40), (1, 2), (2, 13), (2, 14), (3, 14), (4, 29)]
    arrays, place, places = there_and_back(NearLanes(), entries, 16, 64)
    assert arrays["pos"].tolist() == [0, 4] and places == 64
    assert lane(arrays, 0) == [5, 15, 15, 6]  # 4 from -1, then 36 on: 15 + 15 + 6
    assert lane(arrays, 1) == [3, 0, 0, 0]
    assert lane(arrays, 2) == [14, 1, 0, 0]  # 14 ahead needs no step to move on
    assert lane(arrays, 3) == [15, 0, 0, 0]  # 15 ahead: one that moves on, and an entry 0 after it
    assert lane(arrays, 4) == [15, 15, 0, 0]
    assert place == [0, 48, 1, 2, 18, 19, 36]


def test_every_group_has_an_even_number_of_steps():
    arrays, place, places = there_and_back(NearLanes(), [(0, 0), (17, 1), (17, 2), (17, 3)], 48, 64)
    assert arrays["pos"].tolist() == [0, 2, 6, 6] and place == [0, 33, 49, 65] and places == 96


@settings(max_examples=25)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([1, 14, 15, 16, 31, 100]))
def test_any_entries(seed, groups, size):
    there_and_back(NearLanes(), draw(seed, groups * 16, size, most=7), groups * 16, size)


def test_entries_of_the_same_coordinate_share_a_place():
    _, place, _ = there_and_back(NearLanes(), [(0, 4), (0, 4), (0, 5)], 16, 8)
    assert place == [0, 0, 16]


def test_which_places_are_entries():
    crd = paired(torch.tensor([15, 0, 0, 3, 15, 7], dtype=torch.uint8).repeat_interleave(16))
    assert near_entries(crd).view(-1, 16)[:, 5].tolist() == [False, True, False, True, False, True]


def broken(pos, codes):
    return {"pos": ints(*pos).int(), "crd": paired(torch.tensor(codes, dtype=torch.uint8).repeat_interleave(16))}


@pytest.mark.parametrize(
    ("pos", "codes", "message"),
    [
        ([2, 2], [1, 1], "pos starts at 2, must start at 0"),
        ([0, 1], [], "pos has an odd number, every group must have an even number of steps"),
        ([0, 2], [5, 5], "crd has a coordinate outside 0 .. 8"),
        ([0, 2], [1, 15], "crd has a coordinate outside 0 .. 8"),
        ([0, 4], [1, 1], "crd has 16 entries, must have 32"),
    ],
)
def test_broken_promises(pos, codes, message):
    with pytest.raises(ValueError, match=message):
        check(NearLanes(), broken(pos, codes), 16, 9)
    check(NearLanes(), broken([0, 2], [1, 8]), 16, 9)  # up to the last coordinate


def test_a_group_that_ends_on_its_way_is_refused():
    with pytest.raises(ValueError, match="crd moves on at the end of a group, where an entry must follow"):
        check(NearLanes(), broken([0, 2], [1, 15]), 16, 99)
    with pytest.raises(ValueError, match="pos runs backwards"):
        check(NearLanes(), broken([0, 4, 2], [1, 1]), 32, 99)
