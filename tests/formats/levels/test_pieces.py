"""The level of packed bitmaps: a bit for each position, and values side by side."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Pieces, check
from tests.formats._by_hand import draw, ints, there_and_back

SIZE = 64 * 64


def test_entries_by_hand():
    # thread 1 has column 3 of row 0, thread 0 column 1 of row 8: its value comes first
    arrays, place, places = there_and_back(Pieces(), [(0, 3), (0, 64 * 8 + 1)], 1, SIZE)
    assert arrays["pos"].tolist() == [0, 1] and place == [1, 0] and places == 8
    assert arrays["bits"][0] == 0b1000_0010_00  # thread 0: (0, 1, 1); thread 1: (0, 0, 1)
    assert arrays["bits"][:128].count_nonzero() == 1 and arrays["bits"].numel() == 192


@pytest.mark.parametrize(
    ("row", "col", "want"),
    [  # (step, strip, low, lane, upper, high, odd), each a digit of the order
        (0, 1, 1),
        (8, 0, 2),
        (0, 8, 4),
        (0, 2, 8),
        (1, 0, 32),
        (16, 0, 256),
        (0, 16, 1024),
    ],
)
def test_each_digit_of_the_order_by_hand(row, col, want):
    everything = [(0, n) for n in range(SIZE)]
    _, place, places = there_and_back(Pieces(), everything, 1, SIZE)
    assert places == SIZE and place[row * 64 + col] == want


def test_words_count_the_values_before_them():
    # the word at (step 0, low 0, strip 1) has 1 value (row 0, in strip 0) before it; row 16 is its own
    arrays, place, _ = there_and_back(Pieces(), [(0, 0), (0, 16 * 64)], 1, SIZE)
    bits = arrays["bits"].tolist()
    assert place == [0, 1] and bits[0] == 1 and bits[1] == 1  # strips of low 0 are neighbours
    assert bits[128] == 0 | 1 << 16  # words 0 and 1: none and one before


def test_each_piece_begins_at_a_multiple_of_8():
    # two tiles of 128 columns, four pieces, of which the third has nine entries
    entries = [(0, 0), *((1, n) for n in range(9))]
    arrays, place, places = there_and_back(Pieces(), entries, 2, 64 * 128)
    assert arrays["pos"].tolist() == [0, 1, 1, 3, 3] and places == 24
    assert place[0] == 0 and sorted(place[1:]) == list(range(8, 17))


@settings(max_examples=6)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([64, 128]), st.sampled_from([3, 900]))
def test_any_entries(seed, parents, width, most):
    there_and_back(Pieces(), draw(seed, parents, 64 * width, most=most), parents, 64 * width)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Pieces takes coordinates in steps of 4096, not 4095"):
        Pieces().check_sizes(1, 4095)
    arrays, _, _ = Pieces().pack(ints(0), ints(5), 1, SIZE)
    wrong = arrays["bits"].clone()
    wrong[150] += 1
    with pytest.raises(ValueError, match="bits has a start that does not agree with the bits before it"):
        check(Pieces(), {**arrays, "bits": wrong}, 1, SIZE)
    with pytest.raises(ValueError, match="pos does not agree with the number of bits of each piece"):
        check(Pieces(), {**arrays, "pos": torch.tensor([0, 2], dtype=torch.int32)}, 1, SIZE)
