"""The order of loops: chosen by what the operands hold."""

import pytest

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import Derived, LevelUse, Output, Stack, Strided, Walk
from gossamer.compiler.loops.schedule import SEARCH, Choice, Given, Scheduler, nest_order, schedule

FULL = Walk("0", "size", "q", locate="p * size + i")
ROWS = Walk("pos[p]", "pos[p + 1]", "crd[at]")
LOOSE = Walk("pos[p]", "pos[p + 1]", "crd[at]", ordered=False)


def csr(rows, columns, each=10.0, size=1000, inner=ROWS):
    stack = Stack((LevelUse(FULL, rows, 0), LevelUse(inner, columns, 1)))
    return Given(stack, (float(size), each), size * each)


def dense(*vars, size=1000):
    return Given(Strided(vars, vars[-1]), (), float(size) ** len(vars))


def chosen(text, given, kind="dense", sizes=None, **more):
    s = parse(text, [len(g.operand.vars) for g in given])
    sizes = sizes or dict.fromkeys("ijkl", 1000)
    unit = s.output[-1] if s.output else None
    return Scheduler(s.tree, list(given), sizes, Output(kind, s.output, unit), reduce=s.reduce, **more).choose()


def test_sparse_times_vector():
    choice = chosen("ij,j->i", (csr("i", "j"), dense("j")))
    assert choice.order == ("i", "j") and choice.turns == 10_000 and choice.strip is None


def test_sparse_times_dense_runs_over_lanes():
    choice = chosen("ij,jk->ik", (csr("i", "j"), dense("j", "k")))
    assert choice.order == ("i", "j", "k") and choice.strip == "k" and choice.turns == 10_000_000


def test_products_of_sparse_matrices_use_a_workspace():
    choice = chosen("ik,kj->ij", (csr("i", "k"), csr("k", "j")), "rows")
    assert choice.order == ("i", "k", "j") and choice.method == "workspace" and choice.turns == 100_000


def test_rows_of_a_result_are_not_sorted():
    given = (csr("k", "i", inner=LOOSE), csr("k", "j"))  # i can't be searched, so k is outside of it
    assert chosen("ki,kj->ij", given, "rows") is None
    assert chosen("ki,kj->ij", given, "keys").method == "sort"


def test_a_level_in_no_order_is_not_compared_with_another():
    assert chosen("ij,ij->i", (csr("i", "j", inner=LOOSE), csr("i", "j", inner=LOOSE))) is None
    assert chosen("ij,ij->i", (csr("i", "j", inner=LOOSE), csr("i", "j"))) is None
    assert chosen("ij,j->i", (csr("i", "j", inner=LOOSE), dense("j"))).order == ("i", "j")


def test_the_sparser_operand_is_walked():
    few, many = csr("i", "j", 2.0), csr("i", "j", 900.0)
    choice = chosen("ij,ij->i", (few, many))
    assert choice.order == ("i", "j") and choice.turns <= 2000
    assert SEARCH > 1


def test_a_maximum_is_complete_before_the_next_place():
    choice = chosen("max: ij->j", (csr("i", "j"),))
    assert choice.order == ("j", "i")  # its columns are searched for in every row
    assert chosen("max: ij->j", (dense("i", "j"),)).order == ("j", "i")


def test_many_sums_do_not_crowd_out_the_loops_of_a_maximum():
    """Orders that put k after a sum have no future, but were cheap enough to fill the beam: nothing was left."""
    given = (Given(Stack(tuple(LevelUse(ROWS, v, n) for n, v in enumerate("akbcd"))), (1.0, 7.0, 3.0, 2.0, 1.0), 25.0),
             csr("e", "f", 3.0, 6))  # fmt: skip
    choice = chosen("min: akbcd + ef -> k", given, sizes=dict(zip("akbcdef", (1, 7, 3, 2, 1, 6, 10), strict=True)))
    assert choice.order[0] == "k" and set(choice.order) == set("akbcdef")


@pytest.mark.parametrize("size", [0, 1])
def test_small_sizes(size):
    given = (csr("i", "j", float(size), size), dense("j", size=size))
    assert chosen("ij,j->i", given, sizes={"i": size, "j": size}).order == ("i", "j")


def test_nothing_to_loop_over():
    choice = chosen(",->", (Given(Strided(()), (), 1.0),) * 2)
    assert choice.order == () and choice.turns == 1


def test_blocks_cut_an_index_into_loops():
    choice = chosen("i,i->i", (dense("i"), dense("i")), sizes={"a": 250, "b": 4},
                    derived=(Derived("i", (("a", 4), ("b", 1)), False),))  # fmt: skip
    assert sorted(choice.order) == ["a", "b"] and choice.strip is None


def test_equal_operands_share_a_choice():
    s = parse("ij,j->i", (2, 1))
    args = (s.tree, (csr("i", "j"), dense("j")), (("i", 1000), ("j", 1000)), Output("dense", ("i",), "i"), (), "sum")
    assert schedule(*args) is schedule(*args)


@pytest.mark.parametrize(
    "order, strip, outside, want",
    [("ikj", None, False, "ikj"), ("ikj", "j", True, "jik"), ("kij", "j", True, "kij"), ("kj", "j", False, "jk")],
)
def test_where_a_strip_stands(order, strip, outside, want):
    assert nest_order(Choice(tuple(order), 1.0, strip, "direct"), frozenset("ij"), outside) == tuple(want)
