"""Loops by hand: how they are written, and what is refused."""

import pytest

import gossamer as gs
from gossamer.compiler.loops.by_hand import Loops, applied, spelled
from gossamer.compiler.loops.schedule import Choice

CHOICE = Choice(("i", "k", "j"), 1.0, "j", "direct")


def test_they_print_as_they_are_written():
    for loops in (Loops(), Loops("ikj"), Loops("i k", strip="", tile=0, workspace="hash", threads=2)):
        assert eval(repr(loops), {"gs": gs}) == loops
    assert repr(Loops("ikj", threads=1)) == "gs.Loops(order='ikj', threads=1)"


def test_orders_are_letters_or_words():
    assert Loops().ordered(("i", "j")) is None
    assert Loops("ji").ordered(("i", "j")) == ("j", "i") == Loops("j i").ordered(("i", "j"))
    assert Loops("row").ordered(("row",)) == ("row",)
    assert spelled(("row", "k")) == "row k" and Loops(spelled(("row", "k"))).ordered(("k", "row")) == ("row", "k")
    for wrong in ("i", "iij", "ijk", "i j k"):
        with pytest.raises(ValueError, match="must name each loop once, in any order: 'ij'"):
            Loops(wrong).ordered(("i", "j"))


@pytest.mark.parametrize(
    "given", [{"order": ""}, {"order": 3}, {"workspace": "tree"}, {"threads": 0}, {"threads": 1.5}, {"tile": -1},
              {"tile": True}],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))}="):
        Loops(**given)


def test_strips_and_workspaces_that_loops_do_not_have():
    assert applied(Loops(), CHOICE) == CHOICE == applied(Loops(strip="j"), CHOICE)
    assert applied(Loops(strip=""), CHOICE).strip is None
    with pytest.raises(ValueError, match="'k' can't be in strips in the order 'ikj'"):
        applied(Loops(strip="k"), CHOICE)
    with pytest.raises(ValueError, match="loops in the order 'ikj' have no workspace here"):
        applied(Loops(workspace="dense"), CHOICE)
