"""The level of packed V:N:M: two places in each group for each row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.formats.levels import Pairs, check
from gossamer.formats.levels.pairs import step_of
from tests.formats._by_hand import CPU, ints

WIDTH = 16 * 8  # one step of groups of 8
SIZE = 64 * WIDTH


def number(row, col, width=WIDTH):
    return row * width + col


def test_one_row_by_hand():
    level = Pairs("all", 8)
    arrays, place, places = level.pack(ints(0, 0), ints(2, 5), 1, SIZE)
    assert arrays["cols"][0, 0].tolist() == [0, 1, 2, 5] and arrays["cols"].shape == (1, 16, 4)
    assert place.tolist() == [0, 1] and places == 2 * 64 * 16
    assert arrays["meta"][0] & 15 == 0b1110  # slot 0 is index 2, slot 1 is index 3
    check(level, arrays, 1, SIZE)


@pytest.mark.parametrize(
    ("row", "group", "want"),
    [  # (step, r, strip, half, low, lane, upper, high, slot), each a digit of the place
        (8, 0, 2),  # high: two slots
        (0, 4, 4),  # upper: two highs
        (0, 1, 8),  # lane: two uppers
        (1, 0, 32),  # low: four lanes
        (0, 8, 256),  # half: eight lows
        (16, 0, 512),  # strip: two halves
    ],
)
def test_each_digit_of_a_place_by_hand(row, group, want):
    _, place, _ = Pairs(4, 4).pack(ints(0), ints(number(row, group * 4, 64)), 1, 64 * 64)
    assert place.tolist() == [want]


def test_an_entry_alone_leaves_the_first_index_free_beside_it():
    for col, slot, meta in ((0, 0, 0b0100), (1, 1, 0b0100), (3, 1, 0b1100)):
        arrays, place, _ = Pairs("all", 4).pack(ints(0), ints(col), 1, 64 * 64)
        assert place.tolist() == [slot] and arrays["meta"][0] & 15 == meta and arrays["cols"].numel() == 0


@settings(max_examples=6)
@given(st.integers(0, 999), st.sampled_from([("all", 8, 16), (16, 8, 16), (64, 4, 16), (32, 16, 16), ("all", 8, 8)]))
def test_any_entries_come_back(seed, kind):
    v, m, bits = kind
    level, tiles = Pairs(v, m, bits), 2
    groups = step_of(bits)
    rng = torch.Generator().manual_seed(seed)
    rows, width = 64 * tiles, groups * m
    block = torch.arange(rows) * 0 if v == "all" else torch.arange(rows) // v
    shared = torch.rand(int(block.max()) + 1, groups, m, generator=rng).argsort(-1)[..., :4].sort(-1).values
    pick = torch.rand(rows, groups, 4, generator=rng).argsort(-1)[..., :2].sort(-1).values
    cols = shared[block].gather(-1, pick) + torch.arange(groups)[:, None] * m
    keep = torch.rand(cols.shape, generator=rng) < 0.7
    row = torch.arange(rows)[:, None, None].expand_as(cols)[keep]
    cols = cols[keep]
    parent, coord = row // 64, row % 64 * width + cols
    arrays, place, places = level.pack(parent, coord, tiles, 64 * width)
    check(level, arrays, tiles, 64 * width)
    assert places == level.positions(arrays, tiles, 64 * width) and place.unique().numel() == place.numel()
    back_parent, back_coord, _ = level.unpack(arrays, tiles, 64 * width, CPU)
    assert torch.equal(back_parent[place], parent) and torch.equal(back_coord[place], coord)
    assert (back_parent * 64 * width + back_coord).unique().numel() == places  # no position twice


def test_blocks_of_v_rows():
    assert Pairs("all").blocks(3) == 1 and Pairs("all").blocks(0) == 0
    assert Pairs(64).blocks(3) == 3 and Pairs(128).blocks(3) == 2 and Pairs(16).blocks(1) == 4


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="a row keeps 3 of 8 columns, at most 2 of each 8 fit"):
        Pairs("all", 8).pack(ints(0, 0, 0), ints(0, 1, 2), 1, SIZE)
    five = ints(*(number(row, row) for row in range(5)))
    with pytest.raises(ValueError, match="all rows keep 5 different columns of a group of 8, at most 4 fit"):
        Pairs("all", 8).pack(torch.zeros_like(five), five, 1, SIZE)
    with pytest.raises(ValueError, match="16 rows keep 5 different columns"):
        Pairs(16, 8).pack(torch.zeros_like(five), five, 1, SIZE)
    Pairs(4, 8).pack(torch.zeros_like(five), five, 1, SIZE)  # rows 0 to 3, and 4
    with pytest.raises(ValueError, match="Pairs takes coordinates in steps of 8192, not 4096"):
        Pairs("all", 8).check_sizes(1, 4096)


def test_broken_promises():
    level = Pairs("all", 8)
    arrays, _, _ = level.pack(ints(0, 0), ints(2, 5), 1, SIZE)
    for name, change, message in (
        ("meta", lambda a: a.index_fill(0, ints(3), 0), "meta has a pair of indices that does not ascend"),
        ("cols", lambda a: a.flip(-1), "cols does not ascend within a group"),
        ("cols", lambda a: a + 6, "cols has a column outside 0 .. 7"),
        ("cols", lambda a: a[:, :-1], r"cols is \(1, 15, 4\), must be \(1, 16, 4\)"),
        ("meta", lambda a: a[1:], "meta has 127 entries, must have 128"),
    ):
        with pytest.raises(ValueError, match=message):
            check(level, {**arrays, name: change(arrays[name])}, 1, SIZE)
