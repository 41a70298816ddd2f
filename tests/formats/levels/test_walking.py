"""Expressions of levels, and what may be read of one."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from gossamer.formats.levels import Compressed, Dense, Level, Walk, check
from gossamer.formats.levels.walking import value
from tests.formats._by_hand import ints

ARRAYS = {"pos": ints(0, 2, 3), "crd": ints(5, 6, 7)}


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("p + 1", 8), ("p - 1", 6), ("p * 3", 21), ("p / 2", 3), ("p % 4", 3), ("p >> 1", 3), ("p & 5", 5),
        ("p < 7", False), ("p <= 7", True), ("p > 7", False), ("p >= 7", True), ("p == 7", True), ("p != 7", False),
        ("crd[2]", 7), ("crd[pos[1]]", 7), ("crd[p - 7] * 2 + 1", 11),
    ],
)  # fmt: skip
def test_expressions_by_hand(text, want):
    assert int(value(text, {"p": 7}, ARRAYS)) == want


def test_of_many_numbers_at_once():
    assert value("pos[p + 1] - pos[p]", {"p": torch.arange(2)}, ARRAYS).tolist() == [2, 1]
    assert value("pos[p]", {"p": ints()}, ARRAYS).tolist() == []
    assert value("pos[p]", {"p": ints(1)}, {"pos": ints(0, 9).int()}).dtype is torch.int64


@pytest.mark.parametrize(("p", "place"), [(3, 3), (-1, -1)])
def test_no_index_leaves_its_array(p, place):
    with pytest.raises(ValueError, match=rf"pos\[p\] reads place {place} of 3"):
        value("pos[p]", {"p": ints(0, p)}, ARRAYS)


@dataclass(frozen=True)
class Places(Level):
    """Below each parent one position, whose number and coordinate are given."""

    arrays: ClassVar[tuple[str, ...]] = ("at", "crd")
    types: ClassVar[dict] = {"at": (torch.int64,), "crd": (torch.int64,)}
    walk: ClassVar[Walk | None] = Walk("p", "p + 1", "crd[at]", at="at[q]")

    def positions(self, arrays, parents, size):
        return parents


def test_every_position_belongs_to_one_parent():
    check(Places(), {"at": ints(1, 0), "crd": ints(0, 1)}, 2, 2)
    for at, message in (
        ((0, 0), "two parents, or to none"),
        ((0, 2), "lies outside 0 .. 1"),
        ((-1, 0), "outside 0"),
    ):
        with pytest.raises(ValueError, match=message):
            check(Places(), {"at": ints(*at), "crd": ints(0, 1)}, 2, 2)


@pytest.mark.parametrize(
    ("pos", "message"),
    [
        ((0, 3, 2), "crd has 3 entries, must have 2"),
        ((0, 4, 3), "pos runs backwards, must never decrease"),
        ((-1, 2, 3), r"pos\[p\] .. pos\[p \+ 1\] leave the 3 positions"),
        ((1, 2, 3), "pos starts at 1, must start at 0"),
    ],
)
def test_runs_that_are_not_whole(pos, message):
    with pytest.raises(ValueError, match=message):
        check(Compressed(), {"pos": ints(*pos), "crd": ints(0, 1, 2)}, 2, 4)


def test_without_sorted_any_order_may_be_walked():
    arrays = {"pos": ints(0, 3), "crd": ints(2, 0, 2)}
    check(Compressed(), arrays, 1, 4, sorted=False)
    with pytest.raises(ValueError, match=r"crd is not strictly ascending below a parent$"):
        check(Compressed(), arrays, 1, 4)
    with pytest.raises(ValueError, match=r"coordinates 0 .. 2, must lie in 0 .. 1"):
        check(Compressed(), arrays, 1, 2, sorted=False)


def test_types_are_named():
    with pytest.raises(ValueError, match=r"crd is torch.int16, must be int32 or int64"):
        check(Compressed(), {"pos": ints(0, 0), "crd": ints().short()}, 1, 4)


def test_a_level_of_no_arrays_and_no_parents():
    check(Dense(), {}, 0, 0)
    check(Compressed(), {"pos": ints(0), "crd": ints()}, 0, 0)
