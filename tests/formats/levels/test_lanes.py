"""The level of lanes: sixteen parents side by side, as long as the fullest of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import FixedLanes, Lanes, check
from gossamer.formats.levels.lanes import LANES, bytes_of, check_bytes, lanes_of, require_lanes
from tests.formats._by_hand import draw, ints, there_and_back


def test_entries_by_hand_in_two_groups():
    # parent 0 has two entries, parent 1 one; parent 17 (lane 1 of group 1) one; so two steps and one
    arrays, place, places = there_and_back(Lanes(), [(0, 4), (0, 7), (1, 2), (17, 5)], 32, 8)
    assert arrays["pos"].tolist() == [0, 2, 3] and arrays["pos"].dtype is torch.int32
    assert place == [0, 16, 1, 33] and places == 48
    crd = [8] * 48
    crd[0], crd[16], crd[1], crd[33] = 4, 7, 2, 5
    assert arrays["crd"].tolist() == crd and arrays["crd"].dtype is torch.uint8


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(0, 3), st.sampled_from([0, 1, 5, 254]))
def test_any_entries(seed, groups, size):
    there_and_back(Lanes(), draw(seed, groups * LANES, size, most=6), groups * LANES, size)


def test_prepared_arrays_have_room_for_the_fullest_of_sixteen():
    counts = torch.zeros(32, dtype=torch.long)
    counts[3], counts[5], counts[16] = 2, 4, 1
    arrays = Lanes().prepare(counts, 32, 9, torch.int32)
    assert arrays["pos"].tolist() == [0, 4, 5] and arrays["crd"].tolist() == [9] * 80


def test_helpers_by_hand():
    assert lanes_of(ints(0, 2)).tolist() == [*range(16), *range(32, 48)]
    assert bytes_of(ints(3, 1), ints(2, 0), 4, 9).tolist() == [1, 9, 3, 9]
    check_bytes(torch.tensor([0, 8], dtype=torch.uint8), 8)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Lanes takes parents in groups of 16, there are 15"):
        require_lanes(Lanes(), 15, 4, 254)
    with pytest.raises(ValueError, match="FixedLanes has bits for 15 coordinates, not for 16"):
        require_lanes(FixedLanes(1), 16, 16, 15)
    require_lanes(Lanes(), 0, 254, 254)
    with pytest.raises(ValueError, match="bits for 254 coordinates, not for 255"):
        check(Lanes(), {"pos": ints(0).int(), "crd": torch.zeros(0, dtype=torch.uint8)}, 0, 255)


@pytest.mark.parametrize(
    ("pos", "crd", "message"),
    [
        ([0, 1], [8] * 15 + [9], "crd has a coordinate outside 0 .. 8"),
        ([0, 2], [8] * 16, r"crd has 16 entries, must have 32"),
        ([0], [], r"pos has 1 entries, must have 2 \(parents / 16 \+ 1\)"),
        ([1, 1], [8] * 16, "belongs to two parents, or to none"),
    ],
)
def test_broken_promises(pos, crd, message):
    with pytest.raises(ValueError, match=message):
        check(Lanes(), {"pos": ints(*pos).int(), "crd": torch.tensor(crd, dtype=torch.uint8)}, 16, 8)
