"""The level of packed bitmaps: a bit for each position, and a stream of words for each lane."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Pieces, check
from gossamer.formats.levels.pieces import _table
from tests.formats._by_hand import draw, ints, there_and_back

SIZE = 64 * 64


def test_entries_by_hand():
    # lane 1 has column 3 of row 0, lane 0 column 1 of row 8: each is the first value of its lane
    arrays, place, places = there_and_back(Pieces(), [(0, 3), (0, 64 * 8 + 1)], 1, SIZE)
    assert arrays["pos"].tolist() == [0, 1] and place == [2, 0] and places == 64
    assert arrays["bits"][:2].tolist() == [0b1000, 0b10]  # lane 0: (0, 1, 1); lane 1: (0, 0, 1)
    assert arrays["bits"].count_nonzero() == 2 and arrays["bits"].numel() == 128


@pytest.mark.parametrize(
    ("row", "col", "want"),
    [  # of a full piece: 4 words an octet, each a row of 64 values; 4 octets a step
        (0, 1, 1),
        (8, 0, 64),
        (0, 8, 2 * 64),
        (0, 2, 2),
        (1, 0, 4 * 2),
        (16, 0, 4 * 64),
        (0, 16, 16 * 64),
    ],
)
def test_each_digit_of_the_order_by_hand(row, col, want):
    everything = [(0, n) for n in range(SIZE)]
    _, place, places = there_and_back(Pieces(), everything, 1, SIZE)
    assert places == SIZE and place[row * 64 + col] == want


def test_a_stream_by_hand():
    # lane 0: a single value in strip 0; in strip 1 a whole pair and a single one, which fills the first word;
    # strip 2 has nothing, strip 3 a single value, in the third word
    entries = [(0, 0), (0, 16 * 64), (0, 16 * 64 + 1), (0, 16 * 64 + 8), (0, 48 * 64 + 1)]
    arrays, place, places = there_and_back(Pieces(), entries, 1, SIZE)
    assert arrays["bits"][0] == 0b10 << 24 | 0b010011 << 8 | 0b01
    assert place == [0, 64, 65, 1, 128] and places == 3 * 64


def _octet(byte, half):
    table = _table(torch.device("cpu"))
    return table.slot[half, byte].tolist(), int(table.words[half, byte]), int(table.half[half, byte])


def test_room_is_left_where_an_octet_has_whole_pairs_only():
    assert _octet(0b00_00_00_11, 1) == ([2, 3, 0, 0, 0, 0, 0, 0], 2, 0)
    assert _octet(0, 1) == ([0] * 8, 0, 1) and _octet(0, 0) == ([0] * 8, 0, 0)


@given(st.lists(st.integers(0, 255), min_size=1, max_size=16))
def test_no_two_values_share_a_place_and_each_octet_takes_four_words_at_most(octets):
    word, half, taken = 0, 0, set()
    for count, byte in enumerate(octets, 1):
        slots, words, after = _octet(byte, half)
        used = {2 * word + slot for bit, slot in enumerate(slots) if byte >> bit & 1}
        assert len(used) == byte.bit_count() and not used & taken
        taken |= used
        word, half = word + words, after
        assert not taken or max(taken) // 2 <= word + half - 1 < 4 * count


def test_each_piece_begins_with_a_row_of_its_own():
    # two tiles of 128 columns, four pieces, of which the third has the first nine columns of row 0
    entries = [(0, 0), *((1, n) for n in range(9))]
    arrays, place, places = there_and_back(Pieces(), entries, 2, 64 * 128)
    assert arrays["pos"].tolist() == [0, 1, 1, 3, 3] and places == 3 * 64
    assert place == [0, *range(64, 72), 128]  # four lanes with a pair each; lane 0 has column 8 too


@settings(max_examples=6)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([64, 128]), st.sampled_from([3, 900]))
def test_any_entries(seed, parents, width, most):
    there_and_back(Pieces(), draw(seed, parents, 64 * width, most=most), parents, 64 * width)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Pieces takes coordinates in steps of 4096, not 4095"):
        Pieces().check_sizes(1, 4095)
    arrays, _, _ = Pieces().pack(ints(0), ints(5), 1, SIZE)
    with pytest.raises(ValueError, match="pos does not agree with the bits of each piece"):
        check(Pieces(), {**arrays, "pos": torch.tensor([0, 2], dtype=torch.int32)}, 1, SIZE)
