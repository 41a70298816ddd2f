"""The level of fixed lanes: sixteen parents side by side, the same number of places each."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import FixedLanes, check
from tests.formats._by_hand import draw, ints, there_and_back


def test_entries_by_hand_in_two_groups():
    # entry j below parent p is at (p // 16 * 2 + j) * 16 + p % 16
    arrays, place, places = there_and_back(FixedLanes(2), [(0, 4), (0, 7), (1, 2), (18, 5), (18, 6)], 32, 8)
    assert place == [0, 16, 1, 34, 50] and places == 64
    assert [arrays["crd"][at].item() for at in place] == [4, 7, 2, 5, 6]
    assert int((arrays["crd"] == 8).sum()) == 59
    assert FixedLanes(2).numbers(arrays) == {"width": 2}


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(0, 2), st.integers(1, 4))
def test_any_entries(seed, groups, width):
    there_and_back(FixedLanes(width), draw(seed, groups * 16, 9, most=width), groups * 16, 9)


def test_each_part_has_its_share_of_the_places():
    level = FixedLanes(4, 2)  # 2 of the first 4 coordinates, 2 of the last 4
    there_and_back(level, [(0, 0), (0, 3), (0, 4), (0, 7)], 16, 8)
    with pytest.raises(ValueError, match="a row keeps 3 of 4 columns, at most 2 of each 4 fit"):
        level.pack(ints(0, 0, 0), ints(0, 1, 3), 16, 8)
    crd = torch.full((64,), 8, dtype=torch.uint8)
    crd[0], crd[16], crd[32] = 4, 5, 7
    with pytest.raises(ValueError, match="a row keeps 3 of 4 columns"):
        check(level, {"crd": crd}, 16, 8)
    with pytest.raises(ValueError, match="a row keeps 3 of 4 columns"):
        level.stored({"crd": crd}, 16, 8)
    FixedLanes(4).stored({"crd": crd}, 16, 8)  # one part: counts have shown all


def test_prepared_arrays_hold_no_coordinate():
    counts = torch.zeros(16, dtype=torch.long)
    counts[2] = 3
    assert FixedLanes(3).prepare(counts, 16, 5, torch.int32)["crd"].tolist() == [5] * 48
    with pytest.raises(ValueError, match="a row keeps 3 of 5 columns, at most 2 of each 5 fit"):
        FixedLanes(2).prepare(counts, 16, 5, torch.int32)


@pytest.mark.parametrize(
    ("level", "parents", "size", "message"),
    [
        (FixedLanes(1), 15, 8, "FixedLanes takes parents in groups of 16, there are 15"),
        (FixedLanes(1), 16, 255, "FixedLanes has bits for 254 coordinates, not for 255"),
        (FixedLanes(2, 2), 16, 7, "7 coordinates and 2 places can't be cut into 2 parts"),
        (FixedLanes(3, 2), 16, 8, "8 coordinates and 3 places can't be cut into 2 parts"),
    ],
)
def test_sizes_it_refuses(level, parents, size, message):
    with pytest.raises(ValueError, match=message):
        level.check_sizes(parents, size)
    FixedLanes(1).check_sizes(16, 254)


def test_a_byte_that_is_no_coordinate_is_refused():
    crd = torch.full((16,), 8, dtype=torch.uint8)
    check(FixedLanes(1), {"crd": crd}, 16, 8)
    crd[7] = 9
    with pytest.raises(ValueError, match=r"crd has a coordinate outside 0 .. 8"):
        check(FixedLanes(1), {"crd": crd}, 16, 8)
