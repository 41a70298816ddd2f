"""Programs: which loop threads share, and when a place of the output is known."""

from dataclasses import replace

import pytest

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import Derived, LevelUse, Output, Program, Stack, Strided, Walk

MATMUL = parse("ik,kj->ij", (2, 2))
OPERANDS = (Strided(("i", "k"), "k"), Strided(("k", "j"), "j"))
ROWS = Walk("pos[p]", "pos[p + 1]", "crd[at]")


def program(order, output=("i", "j"), kind="dense", **more):
    return Program(MATMUL, MATMUL.tree, OPERANDS, Output(kind, tuple(output), output[-1]), tuple(order), **more)


@pytest.mark.parametrize("order, settled, before", [("ijk", 2, False), ("ikj", 3, True), ("kij", 3, True)])
def test_when_a_place_is_known(order, settled, before):
    p = program(order)
    assert (p.settled, p.reduces_before) == (settled, before)


def test_a_sum_of_everything_is_settled_at_once():
    assert program("ijk", output=("i",)).settled == 1
    s = parse("ij->", (2,))
    p = Program(s, s.tree, OPERANDS[:1], Output("dense", ()), ("i", "j"))
    assert (p.settled, p.reduces_before, p.root) == (0, False, 0)


def test_the_loop_that_threads_share():
    assert program("ijk").root == 0
    assert program("jik", strip="j").root == 1
    assert program("tik", outside=("t",)).root == 1
    assert program("i", strip="i").root == 0  # a lone strip is shared itself


def test_blocks_depend_on_both_of_their_loops():
    blocked = program(("a", "j", "b", "k"), derived=(Derived("i", (("a", 4), ("b", 1)), True),))
    assert blocked.out_vars == {"a", "b", "j"} and blocked.settled == 3 and not blocked.reduces_before


@pytest.mark.parametrize(
    "kind, workspace, yes", [("rows", "dense", True), ("rows", None, False), ("dense", "x", False)]
)
def test_workspaces_are_for_sparse_outputs(kind, workspace, yes):
    assert program("ikj", kind=kind, workspace=workspace).scatters is yes


def test_walks():
    assert ROWS.counted and ROWS.searchable
    assert not replace(ROWS, begin="0").counted
    for change in ({"ordered": False}, {"real": "crd[at] >= 0"}, {"at": "p + q"}, {"coord": "q"}):
        assert not replace(ROWS, **change).searchable


def test_levels_and_titles():
    stack = Stack((LevelUse(Walk("0", "size", "q", locate="p * size + i"), "i", 0), LevelUse(ROWS, "k", 1)))
    assert [level.full for level in stack.levels] == [True, False] and stack.vars == ("i", "k")
    p = replace(program("ikj"), operands=(stack, OPERANDS[1]))
    assert p.title().splitlines()[1] == "A sparse(i, k), B dense(k, j); output dense(i, j)"
    assert p == replace(p) and hash(p) == hash(replace(p)) and p != program("ikj")
