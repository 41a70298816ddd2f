"""The level of half lanes: two places in a byte."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import HalfLanes
from tests.formats._by_hand import draw, there_and_back


def test_entries_by_hand():
    # byte q // 2 * 16 + lane: step 0 in its lower half, step 1 in its upper; 8 where there is none
    arrays, place, places = there_and_back(HalfLanes(2), [(0, 4), (0, 7), (1, 2)], 16, 8)
    assert place == [0, 16, 1] and places == 32
    assert arrays["crd"].tolist() == [0x74, 0x82] + [0x88] * 14


def test_an_odd_number_of_steps_ends_with_half_a_byte():
    arrays, place, places = there_and_back(HalfLanes(1), [(0, 4), (16, 5), (33, 6)], 48, 8)
    assert place == [0, 16, 33] and places == 48 and arrays["crd"].numel() == 32
    assert arrays["crd"][0] == 0x54 and arrays["crd"][17] == 0x06 and arrays["crd"][16] == 0x08


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(0, 3), st.integers(1, 5), st.sampled_from([5, 15]))
def test_any_entries(seed, groups, width, size):
    arrays, _, places = there_and_back(HalfLanes(width), draw(seed, groups * 16, size, most=width), groups * 16, size)
    assert arrays["crd"].numel() == (groups * width + 1) // 2 * 16 and places == groups * width * 16


def test_half_a_byte_tells_15_coordinates_from_none():
    HalfLanes(1).check_sizes(16, 15)
    with pytest.raises(ValueError, match="HalfLanes has bits for 15 coordinates, not for 16"):
        HalfLanes(1).check_sizes(16, 16)


def test_prepared_arrays_hold_no_coordinate_in_both_halves():
    arrays = HalfLanes(2).prepare(torch.zeros(16, dtype=torch.long), 16, 9, torch.int32)
    assert arrays["crd"].tolist() == [0x99] * 16
