"""The names of levels."""

import pytest

from gossamer.formats.levels import Bitmap, Compressed, Dense, Fixed, Lanes, Singleton, as_level, level_name
from gossamer.formats.levels.names import NAMES


def test_every_name_by_hand():
    assert [as_level(name) for name in NAMES] == [
        Dense(), Bitmap(), Compressed(unique=True), Compressed(unique=False), Singleton(), Fixed(None)
    ]  # fmt: skip
    assert list(NAMES) == ["dense", "bitmap", "compressed", "compressed-nonunique", "singleton", "fixed"]


def test_a_name_and_its_level_are_each_other_s():
    for name in NAMES:
        assert level_name(as_level(name)) == name


def test_a_level_is_itself_and_has_a_name_only_if_it_is_the_named_one():
    assert as_level(Fixed(2)) == Fixed(2) and level_name(Fixed(2)) == Fixed(2)
    assert level_name(Lanes()) == Lanes()


@pytest.mark.parametrize("wrong", ["squeezed", "Dense", "", 5, None, ["dense"]])
def test_unknown_names_are_refused(wrong):
    with pytest.raises(ValueError, match=r"unknown level .*; known are dense, bitmap, compressed, .*, fixed"):
        as_level(wrong)
