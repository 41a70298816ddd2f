"""The dense level: a position for every coordinate."""

import torch

from gossamer.formats.levels import Dense
from tests.formats._by_hand import CPU, there_and_back


def test_entries_by_hand():
    arrays, place, places = there_and_back(Dense(), [(0, 1), (0, 3), (2, 0)], 3, 4)
    assert arrays == {} and place == [1, 3, 8] and places == 12


def test_unpack_counts_coordinates_below_each_parent():
    parent, coord, real = Dense().unpack({}, 2, 3, CPU)
    assert parent.tolist() == [0, 0, 0, 1, 1, 1] and coord.tolist() == [0, 1, 2, 0, 1, 2] and real is None


def test_it_is_an_axis_of_the_values_and_stores_everything():
    assert Dense.full and Dense.whole and Dense().ordered and Dense().merges


def test_nothing_below_no_parent_or_in_no_size():
    for parents, size in ((0, 4), (3, 0), (0, 0)):
        assert there_and_back(Dense(), [], parents, size) == ({}, [], 0)
        parent, coord, _ = Dense().unpack({}, parents, size, CPU)
        assert parent.dtype == coord.dtype == torch.int64
