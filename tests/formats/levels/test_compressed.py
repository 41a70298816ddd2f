"""The compressed level: only the coordinates in use."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Compressed, check
from tests.formats._by_hand import draw, ints, lists, there_and_back


@pytest.mark.parametrize("unique", [True, False])
def test_entries_by_hand(unique):
    arrays, place, places = there_and_back(Compressed(unique), [(0, 1), (0, 3), (2, 0)], 3, 4)
    assert lists(arrays) == {"pos": [0, 2, 2, 3], "crd": [1, 3, 0]} and place == [0, 1, 2] and places == 3


def test_a_coordinate_of_many_entries_is_stored_once_unless_it_may_repeat():
    arrays, place, n = there_and_back(Compressed(), [(0, 1), (0, 1), (0, 2), (1, 2)], 2, 4)
    assert lists(arrays) == {"pos": [0, 2, 3], "crd": [1, 2, 2]} and place == [0, 0, 1, 2] and n == 3
    arrays, place, n = there_and_back(Compressed(unique=False), [(0, 1), (0, 1), (0, 2), (1, 2)], 2, 4)
    assert lists(arrays) == {"pos": [0, 3, 4], "crd": [1, 1, 2, 2]} and place == [0, 1, 2, 3] and n == 4
    assert Compressed().merges and not Compressed(unique=False).merges


def test_prepared_arrays_have_room_for_what_was_counted():
    arrays = Compressed().prepare(ints(2, 0, 1), 3, 4, torch.int32)
    assert arrays["pos"].tolist() == [0, 2, 2, 3] and arrays["pos"].dtype is torch.int32
    assert arrays["crd"].shape == (3,) and arrays["crd"].dtype is torch.int32


@settings(max_examples=20)
@given(st.integers(0, 999), st.integers(0, 5), st.integers(0, 6))
def test_any_entries(seed, parents, size):
    entries = draw(seed, parents, size)
    arrays, _, places = there_and_back(Compressed(), entries, parents, size)
    assert places == len(entries) and arrays["crd"].tolist() == [c for _, c in entries]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_step_down_between_parents_is_fine(dtype):
    check(Compressed(), {"pos": ints(0, 1, 1, 2).to(dtype), "crd": ints(3, 0).to(dtype)}, 3, 4)
    check(Compressed(), {"pos": ints(0, 0, 0, 0).to(dtype), "crd": ints().to(dtype)}, 3, 4)
    check(Compressed(), {"pos": ints(0).to(dtype), "crd": ints().to(dtype)}, 0, 4)


@pytest.mark.parametrize(
    ("level", "arrays", "message"),
    [
        (Compressed(), {"pos": ints(0, 1), "crd": ints(0)}, "pos has 2 entries, must have 4"),
        (Compressed(), {"pos": ints(1, 1, 1, 1), "crd": ints(0)}, "pos starts at 1"),
        (Compressed(), {"pos": ints(0, 1, 1, 2), "crd": ints(0)}, r"crd has 1 entries, must have 2 \(pos\[parents\]\)"),
        (Compressed(), {"pos": ints(0, 2, 1, 3), "crd": ints(0, 1, 2)}, "pos runs backwards"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(0, 4)}, "coordinates 0 .. 4, must lie in 0 .. 3"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(-1, 0)}, "coordinates -1 .. 0"),
        (Compressed(), {"pos": ints(0, 2, 2, 2), "crd": ints(1, 1)}, "not strictly ascending"),
        (Compressed(unique=False), {"pos": ints(0, 2, 2, 2), "crd": ints(2, 1)}, "not ascending"),
        (Compressed(), {"pos": ints(0, 0, 0, 0)[None], "crd": ints()}, "pos has 2 dimensions"),
        (Compressed(), {"pos": ints(0, 0, 0, 0).float(), "crd": ints()}, "pos is torch.float32"),
    ],
)
def test_broken_promises(level, arrays, message):
    with pytest.raises(ValueError, match=message):
        check(level, arrays, 3, 4)
