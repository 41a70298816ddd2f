"""The words of levels as expressions of a nest."""

import pytest

from gossamer.compiler.language.program import LevelUse, Walk
from gossamer.compiler.loops.nest import ZERO, Num, Store, Var, show
from gossamer.compiler.loops.walks import iterator, located, read, read_store, words
from gossamer.formats.levels import Bitmap, Compressed, Dense, Fixed, Lanes

P = Var("p0")


def use(level, *arrays, numbers=()):
    return LevelUse(Walk(*level.walk), "i", 1, tuple((a, "int") for a in arrays), numbers)


def test_a_compressed_level_by_hand():
    it = iterator(0, use(Compressed(), "pos", "crd"), P, Var("i.size"))
    assert (show(it.begin), show(it.end), show(it.at)) == ("A.pos1[p0]", "A.pos1[p0 + 1]", "A1.q")
    assert show(it.coord(Var("here"))) == "A.crd1[here]" and it.real is None and it.kept is None


def test_padding_and_stored_zeros():
    padded = iterator(1, use(Fixed(), "crd", numbers=("width",)), P, Num(9))
    assert show(padded.end) == "(p0 + 1) * B.width1" and show(padded.real(Var("q"))) == "B.crd1[q] >= 0"
    assert show(iterator(0, use(Bitmap(), "mask"), P, Num(9)).kept(Var("q"))) == "A.mask1[q]"
    lanes = iterator(0, use(Lanes(), "pos", "crd"), P, Num(9))
    assert show(lanes.at) == "A1.q * 16 + p0 % 16" and show(lanes.real(lanes.at)).endswith("< 9")


def test_located():
    assert show(located(use(Dense()), P, Num(7), Var("i"))) == "p0 * 7 + i"
    assert show(located(use(Dense()), ZERO, Num(7), Var("i"))) == "i"


def test_what_is_written():
    known, arrays = words(1, 2, ("width",), (("crd", "int"),))
    known |= {"at": Var("B2.p"), "i": Var("B2.i"), "p": P, "size": Num(4)}
    assert read_store("crd[at] = i", known, arrays) == Store("B.crd2", Var("B2.p"), Var("B2.i"))
    code = read_store("crd[p * width] ^= (i ^ size) << 4", known, arrays)
    assert code.sign == "^=" and show(code.value) == "(B2.i ^ 4) << 4" and show(code.index) == "p0 * B.width2"
    with pytest.raises(ValueError, match="must be an element of one of its arrays"):
        read_store("i = at", known, arrays)


def test_nothing_is_taken_away_where_it_changes_nothing():
    assert read("at - p * size", {"at": Var("q"), "p": ZERO, "size": Num(5)}, {}) == Var("q")
    assert show(read("at - p * size", {"at": Var("q"), "p": P, "size": Num(5)}, {})) == "q - (p0 * 5)"
