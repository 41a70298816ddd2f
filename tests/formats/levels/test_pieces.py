"""The level of packed bitmaps: codes of groups of four, and a stream of words for each lane."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Pieces, check, pieces
from gossamer.formats.levels.pieces import CODES, MOST, _change, _table
from tests.formats._by_hand import draw, ints, there_and_back

WIDTH, SIZE = 128, 16 * 128


def test_entries_by_hand():
    # lane 0 has column 3 of row 0: the second value of a word, after a row of single values. Lane 1 has two of these:
    # column 4 of row 8, and column 64 + 6 of row 0, in the other half
    arrays, place, places = there_and_back(Pieces(), [(0, 3), (0, 64 + 6), (0, WIDTH * 8 + 4)], 1, SIZE)
    column = int(arrays["codes"][64:].view(torch.uint8)[1])
    assert arrays["pos"].tolist() == [0, 2] and place == [64 + 1, 2 * column + 1, 2] and places == 128
    assert arrays["codes"][0] == CODES[0b1000] and arrays["codes"][2] == CODES[0b0001] << 16  # of the lower half
    assert arrays["codes"][3] == CODES[0b0100] and arrays["codes"][4:64].count_nonzero() == 0
    assert arrays["codes"].numel() == 72


@pytest.mark.parametrize(
    ("row", "col", "want"),
    [  # of a full piece: a row, and two words a group, each a row of 64 values
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
    assert places == MOST and place[row * WIDTH + col] == 64 + want


def test_lanes_change_columns_after_the_first_pair():
    # lane 0 has two words in the first pair, lane 1 two in the second one: they share no column
    entries = [(0, n) for n in (0, 1, 16, 17, 64 + 4, 64 + 5, 64 + 20, 64 + 21)]
    arrays, place, places = there_and_back(Pieces(), entries, 1, SIZE)
    columns = (arrays["codes"][64:].view(torch.uint8) % 32).tolist()
    assert columns[1] != 0 and sorted(columns) == list(range(32))
    assert place[:4] == [64, 65, 128, 129] and place[4:] == [n + 2 * columns[1] for n in (64, 65, 128, 129)]
    assert places == 3 * 64


def test_the_longest_second_pair_follows_the_shortest_first_pair():
    none = torch.zeros(1, 2, 3, dtype=torch.int64)
    assert _change(torch.tensor([[[5, 0, 2], [1, 3, 2]]]), none).tolist() == [[0, 1, 2]]
    assert _change(torch.tensor([[[5, 0, 2], [3, 1, 2]]]), none).tolist() == [[1, 0, 2]]


def test_columns_swap_what_follows_until_the_fullest_one_has_few_rows():
    # by size alone the four single values would follow the word: five rows
    words, singles = torch.tensor([[[1, 0], [0, 2]]]), torch.tensor([[[0, 2], [4, 0]]])
    assert _change(words, singles).tolist() == [[1, 0]]
    torch.manual_seed(0)
    words, singles = torch.randint(0, 9, (50, 2, 32)), torch.randint(0, 5, (50, 2, 32))

    def rows(change):
        lane = change.long().argsort(1)
        after = words[:, 1].gather(1, lane), singles[:, 1].gather(1, lane)
        return (words[:, 0] + after[0] + torch.maximum(singles[:, 0], after[1]).clamp(1)).amax(1)

    swapped = rows(_change(words, singles))
    with patch.object(pieces, "_SWAPS", 0):
        before = rows(_change(words, singles))
    assert (swapped <= before).all() and swapped.sum() < 0.96 * before.sum()


@pytest.mark.parametrize("kept", range(16))
def test_a_code_says_which_values_there_are(kept):
    table, code = _table(torch.device("cpu")), CODES[kept]
    b3, b2, b1, b0 = (code >> n & 1 for n in (3, 2, 1, 0))
    pair = b2 and not b1 and not b0
    first, single = b3 or pair, not b3 and (b0 or (b2 and b1))
    most = (b1 and not b0) if b3 else (b0 or b1)
    second = (b1 and not most) if b2 else (most or b1)
    low = b1 and not (b2 and not b0)
    metadata = (0, 1) if low else (code & 3, 2 * (b3 or not pair) + b2)
    assert int(table.kept[code]) == kept and metadata[0] < metadata[1]
    assert (int(table.words[kept]), int(table.singles[kept])) == (bool(first) + bool(second), bool(single))
    places = [*(metadata if first else ()), *((2, 3) if second else ())]
    for place in range(4):
        if kept >> place & 1:
            slot = int(table.slot[kept, place])
            assert (metadata[0] if slot < 0 else places[slot]) == place


def test_each_piece_begins_with_a_row_of_its_own():
    # two strips of 256 columns, four pieces, of which the third has 17 columns of row 0
    entries = [(0, 0), *((1, n) for n in range(17))]
    arrays, place, places = there_and_back(Pieces(), entries, 2, 2 * SIZE)
    assert arrays["pos"].tolist() == [0, 1, 2, 5, 6] and places == 6 * 64
    # lane 0: a row of single values, of which column 16 is one, and two words
    assert place[:5] == [0, 64 * 3, 64 * 3 + 1, 64 * 4, 64 * 4 + 1] and place[-1] == 64 * 2


@settings(max_examples=6)
@given(st.integers(0, 999), st.integers(0, 2), st.sampled_from([128, 256]), st.sampled_from([3, 900]))
def test_any_entries(seed, parents, width, most):
    there_and_back(Pieces(), draw(seed, parents, 16 * width, most=most), parents, 16 * width)


def test_what_it_refuses():
    with pytest.raises(ValueError, match="Pieces takes coordinates in steps of 2048, not 2047"):
        Pieces().check_sizes(1, 2047)
    arrays, _, _ = Pieces().pack(ints(0), ints(5), 1, SIZE)
    with pytest.raises(ValueError, match="pos does not agree with the codes of each piece"):
        check(Pieces(), {**arrays, "pos": torch.tensor([0, 2], dtype=torch.int32)}, 1, SIZE)
    bits = arrays["codes"].clone()
    bits[64] = 0
    with pytest.raises(ValueError, match="no permutation"):
        check(Pieces(), {**arrays, "codes": bits}, 1, SIZE)
