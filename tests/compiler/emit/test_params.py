"""What kernels take, in order."""

import pytest

from gossamer.compiler.emit import params
from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import Derived, LevelUse, Output, Program, Stack, Strided, Walk

FULL = Walk("0", "size", "q", locate="p * size + i")
ROWS = Walk("pos[p]", "pos[p + 1]", "crd[at]")
CSR = Stack((LevelUse(FULL, "i", 0), LevelUse(ROWS, "j", 1, (("pos", "int"), ("crd", "long")), ("width",))))


def program(kind="dense", order="ij", operand=CSR, **more):
    s = parse("ij,jk->ik", (2, 2))
    operands = (operand, Strided(("j", "k"), "k"))
    return Program(s, s.tree, operands, Output(kind, ("i", "k"), "k", 0), (*order, "k"), value="double", **more)


def test_arrays_of_operands_come_first():
    own = (("A.pos1", "int"), ("A.crd1", "long"), ("A.val", "double"), ("B.val", "double"))
    assert params.arrays(program()) == params.arrays(program("pattern")) == (*own, ("out", "double"))


@pytest.mark.parametrize("kind, crd", [("rows", "int"), ("keys", "long")])
def test_sparse_results_have_coordinates_and_counts(kind, crd):
    assert params.arrays(program(kind))[-3:] == (("out.crd", crd), ("out", "double"), ("out.count", "long"))


def test_integers():
    sizes = ("i.size", "j.size", "k.size", "A.width1", "B.s0")
    assert params.sizes(program()) == (*sizes, "out.total", "out.s0")
    assert params.sizes(program("rows")) == sizes
    cut = program(order="abj", derived=(Derived("i", (("a", 4), ("b", 1)), True),))
    assert params.sizes(cut)[:5] == ("a.size", "b.size", "j.size", "k.size", "i.size")


def test_weights_are_the_entries_before_each_row():
    assert params.weights(program()) == "A.pos1"
    assert params.weights(program(order="ji")) is None  # the shared loop is another
    assert params.weights(program(operand=Strided(("i", "j"), "j"))) is None
    fixed = Stack((CSR.levels[0], LevelUse(Walk("p * width", "(p + 1) * width", "crd[at]"), "j", 1)))
    assert params.weights(program(operand=fixed)) is None
