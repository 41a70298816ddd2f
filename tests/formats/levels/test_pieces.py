"""The level of packed bitmaps: codes of groups of four, and a stream of words for each lane."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Pieces, check
from gossamer.formats.levels.pieces import CODES, _change, _table
from tests.formats._by_hand import draw, ints, there_and_back

WIDTH, SIZE = 128, 16 * 128


def test_entries_by_hand():
    # lane 0 has column 3 of row 0: the second value of a word; lane 1 column 4 of row 8: the first
    arrays, place, places = there_and_back(Pieces(), [(0, 3), (0, WIDTH * 8 + 4)], 1, SIZE)
    assert arrays["pos"].tolist() == [0, 1] and place == [1, 2] and places == 64
    assert arrays["bits"][0] == CODES[0b1000] and arrays["bits"][2] == CODES[0b0001] << 16  # of the lower half
    assert arrays["bits"][3:64].count_nonzero() == 0 and arrays["bits"].numel() == 72


@pytest.mark.parametrize(
    ("row", "col", "want"),
    [  # of a full piece: two words a group, each a row of 64 values
        (0, 1, 1),
        (0, 2, 64),
        (0, 16, 2 * 64),
        (0, 32, 4 * 64),
        (8, 0, 8 * 64),
        (0, 64, 16 * 64),
        (0, 4, 2),
        (1, 0, 4 * 2),
    ],
)
def test_each_digit_of_the_order_by_hand(row, col, want):
    everything = [(0, n) for n in range(SIZE)]
    _, place, places = there_and_back(Pieces(), everything, 1, SIZE)
    assert places == SIZE and place[row * WIDTH + col] == want


def test_lanes_change_columns_after_the_first_pair():
    # lane 0 has two words in the first pair, lane 1 two in the second one: they share a column of two rows
    entries = [(0, n) for n in (0, 16, 64 + 4, 64 + 20)]
    arrays, place, places = there_and_back(Pieces(), entries, 1, SIZE)
    columns = arrays["bits"][64:].view(torch.uint8).tolist()
    assert columns[:3] == [2, 1, 3] and sorted(columns) == list(range(32))
    assert place == [0, 64, 2, 64 + 2] and places == 2 * 64


def test_the_longest_second_pair_follows_the_shortest_first_pair():
    assert _change(torch.tensor([[[5, 0, 2], [1, 3, 2]]])).tolist() == [[0, 1, 2]]
    assert _change(torch.tensor([[[5, 0, 2], [3, 1, 2]]])).tolist() == [[1, 0, 2]]


@pytest.mark.parametrize("kept", range(16))
def test_a_code_is_metadata_and_says_which_planes_have_a_word(kept):
    table, code = _table(torch.device("cpu")), CODES[kept]
    assert int(table.kept[code]) == kept
    bits = [code >> n & 1 for n in range(4)]
    pair = (bits[0], 2 * bits[3] + bits[2]) if bits[3] and not bits[1] else (0, 1)  # places of the first plane
    first, second = bits[0] or bits[3] + bits[2] + (not bits[1]) > 1, bits[1]
    assert pair[0] < pair[1] and int(table.words[kept]) == bool(first) + second
    places = [*(pair if first else ()), *((2, 3) if second else ())]
    for place in range(4):
        if kept >> place & 1:
            assert places[int(table.slot[kept, place])] == place


def test_each_piece_begins_with_a_row_of_its_own():
    # two strips of 256 columns, four pieces, of which the third has 17 columns of row 0
    entries = [(0, 0), *((1, n) for n in range(17))]
    arrays, place, places = there_and_back(Pieces(), entries, 2, 2 * SIZE)
    assert arrays["pos"].tolist() == [0, 1, 1, 4, 4] and places == 4 * 64
    assert place[:5] == [0, 64, 65, 128, 129] and place[-1] == 64 * 3  # lane 0: three words; column 16 is the last


@settings(max_examples=6)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([128, 256]), st.sampled_from([3, 900]))
def test_any_entries(seed, parents, width, most):
    there_and_back(Pieces(), draw(seed, parents, 16 * width, most=most), parents, 16 * width)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Pieces takes coordinates in steps of 2048, not 2047"):
        Pieces().check_sizes(1, 2047)
    arrays, _, _ = Pieces().pack(ints(0), ints(5), 1, SIZE)
    with pytest.raises(ValueError, match="pos does not agree with the bits of each piece"):
        check(Pieces(), {**arrays, "pos": torch.tensor([0, 2], dtype=torch.int32)}, 1, SIZE)
    bits = arrays["bits"].clone()
    bits[64] = 0
    with pytest.raises(ValueError, match="no permutation"):
        check(Pieces(), {**arrays, "bits": bits}, 1, SIZE)
