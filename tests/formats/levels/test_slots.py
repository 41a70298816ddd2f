"""The level of slots: every coordinate once, the fullest first."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Slots, check
from tests.formats._by_hand import CPU, draw, ints, lists, there_and_back


def test_entries_by_hand():
    # below parent 0: coordinate 2 has two entries, 1 has one, 0 none; below parent 1 only 0 has any
    arrays, place, places = there_and_back(Slots(), [(0, 1), (0, 2), (0, 2), (1, 0)], 2, 3)
    assert lists(arrays) == {"crd": [2, 1, 0, 0, 1, 2]} and arrays["crd"].dtype is torch.int32
    assert place == [1, 0, 0, 3] and places == 6


def test_coordinates_that_are_as_full_keep_their_order():
    arrays, place, _ = there_and_back(Slots(), [(0, 1), (0, 3)], 1, 4)
    assert lists(arrays) == {"crd": [1, 3, 0, 2]} and place == [0, 1]


def test_prepared_arrays_have_the_slot_of_each_coordinate_too():
    arrays = Slots().prepare(ints(0, 1, 5), 1, 3, torch.int32)
    assert lists(arrays) == {"crd": [2, 1, 0], "slot": [2, 1, 0]}
    arrays = Slots().prepare(ints(1, 5, 3), 1, 3, torch.int32)
    assert lists(arrays) == {"crd": [1, 2, 0], "slot": [2, 0, 1]} and arrays["slot"].dtype is torch.int32


@settings(max_examples=15)
@given(st.integers(0, 999), st.integers(0, 4), st.integers(1, 5))
def test_any_entries(seed, parents, size):
    there_and_back(Slots(), draw(seed, parents, size), parents, size)


def test_it_stores_every_coordinate_but_not_in_order():
    assert Slots.whole and not Slots.full and not Slots().ordered
    parent, coord, real = Slots().unpack({"crd": ints(1, 0, 0, 1).int()}, 2, 2, CPU)
    assert parent.tolist() == [0, 0, 1, 1] and coord.tolist() == [1, 0, 0, 1] and real is None


@pytest.mark.parametrize("crd", [(0, 0), (1, 1), (0, 2)])
def test_a_coordinate_that_is_missing_is_refused(crd):
    with pytest.raises(ValueError, match="crd must hold every coordinate once below each parent"):
        check(Slots(), {"crd": ints(*crd, 1, 0).int()}, 2, 2)
    check(Slots(), {"crd": ints(0, 1, 1, 0).int()}, 2, 2)
