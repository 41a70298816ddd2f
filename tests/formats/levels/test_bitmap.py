"""The bitmap level: a place for every coordinate, and a bit for those that are stored."""

import pytest
import torch

from gossamer.formats.levels import Bitmap, check
from tests.formats._by_hand import CPU, ints, lists, there_and_back

T, F = True, False


def test_entries_by_hand():
    arrays, place, places = there_and_back(Bitmap(), [(0, 1), (0, 3), (2, 0)], 3, 4)
    assert lists(arrays) == {"mask": [F, T, F, T, F, F, F, F, T, F, F, F]}
    assert place == [1, 3, 8] and places == 12


def test_what_is_real_is_flat_even_if_the_mask_has_the_shape_of_the_values():
    mask = torch.tensor([[T, F, F], [F, F, T]])
    parent, coord, real = Bitmap().unpack({"mask": mask}, 2, 3, CPU)
    assert real.tolist() == [T, F, F, F, F, T] and parent.tolist() == [0, 0, 0, 1, 1, 1] and coord[5] == 2


def test_it_is_an_axis_of_the_values_but_does_not_store_everything():
    assert Bitmap.full and not Bitmap.whole


def test_prepared_arrays_are_empty_and_of_bool():
    arrays = Bitmap().prepare(ints(2, 0), 2, 3, torch.int32)
    assert arrays["mask"].dtype is torch.bool and lists(arrays) == {"mask": [F] * 6}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(11, dtype=torch.bool), "mask has 11 entries, must have 12"),
        (torch.ones(12), "mask is torch.float32, must be bool"),
        (torch.ones(4, 3, dtype=torch.bool), "mask has 2 dimensions, must have 1"),
    ],
)
def test_broken_promises(mask, message):
    with pytest.raises(ValueError, match=message):
        check(Bitmap(), {"mask": mask}, 3, 4)
