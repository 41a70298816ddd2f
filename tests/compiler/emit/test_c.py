"""C of loop nests: expressions by hand, and what they compute."""

import pytest
import torch

from gossamer.compiler.emit.c import Writer
from gossamer.compiler.emit.lanes import Lanes, NotLinear
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Acc,
    Append,
    Bin,
    Call,
    Drain,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Nest,
    Num,
    Scatter,
    Set,
    Store,
    Var,
    While,
)  # fmt: skip
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

ROW, COL = Var("row"), Var("col")


def writer(value="float", **more):
    return Writer(Nest("", (), (), [], value, indices=("row", "col"), **more))


@pytest.mark.parametrize(
    "e, text",
    [
        (Bin("+", ROW, Bin("*", COL, Num(2))), "(i + (j * 2))"),
        (Load("A.val", ROW), "A_val[i]"),
        (Num(0.5), "((real)0.5)"),
        (Num(float("-inf")), "-__builtin_inf()"),
        (Bin("min", ROW, COL), "(i < j ? i : j)"),
        (Bin("/", Load("A.val", ROW), Var("row.size")), "(A_val[i] / (real)i_size)"),
        (Bin("/", ROW, Num(4)), "(i / 4)"),
        (Call("sqrt", (Load("A.val", COL),)), "sqrtf"),
    ],
)
def test_expressions(e, text):
    assert text in writer().expr(e)


def test_how_an_index_moves_with_the_lanes():
    w = writer()
    w.lanes = Lanes("col", 8, 1, {"n": 2})
    steps = [w.step(e) for e in (COL, ROW, Bin("+", COL, ROW), Bin("-", Var("n"), COL), Bin("*", ROW, Num(3)))]
    assert steps == [1, 0, 1, 1, 0]
    for bad in (Bin("*", COL, Num(2)), Load("A.crd", COL), Bin("/", COL, Num(2))):
        with pytest.raises(NotLinear):
            w.step(bad)


def test_workspaces():
    w = Writer(Nest("", (("out.crd", "int"),), (), [], "float", indices=("col",)))
    w.block([Scatter(COL, Num(0.0)), Scatter(COL, Num(2.0)), Drain("col", "out.w", [Set("out.n", ONE, "+=")])])
    w.block([Drain("col", "out.w", [Append(COL, Var("out.w"))])])
    assert [line.strip() for line in w.lines] == [
        "ws_mark(ws, i);", "ws_add(ws, i, ((real)2.0));", "out_n += ws_count(ws);",
        "out_n += ws_append(ws, out_crd + out_n, out + out_n);",
    ]  # fmt: skip


@pytest.mark.skipif(not runtime.available(), reason="no C compiler")
def test_maxima_keep_nan():
    turn = Into("out.acc", Load("A.val", ROW), "max=")
    body = [Acc("out.acc", float("-inf")), For("row", ZERO, Var("row.size"), [turn])]
    body = [*body, Let("n", ZERO), Store("out", Var("n"), Var("out.acc"))]
    nest = Nest("", (("A.val", "float"), ("out", "float")), ("row.size",), body, "float", indices=("row",))
    for given in ([1.0, 3.0, 2.0], [1.0, float("nan"), 2.0], [float("nan"), 2.0], [-5.0]):
        a, out = torch.tensor(given), torch.zeros(1)
        ran(nest, {"A.val": a, "out": out}, {"row.size": len(given)})
        torch.testing.assert_close(out[0], a.amax(), equal_nan=True)


@pytest.mark.parametrize(
    "statement",
    [
        Find("B1.q", "B.crd1", ZERO, Num(4), COL),
        Find("B1.q", "B.crd1", Load("B.pos1", COL), Num(4), ROW),
        If(Bin("<", COL, Num(4)), []),
        While(Bin("<", ROW, COL), []),
    ],
)
def test_lanes_that_would_branch_on_their_own_are_refused(statement):
    w = writer()
    w.lanes = Lanes("col", 8, 1)
    with pytest.raises(NotLinear):
        w.statement(statement)
    w.lanes = Lanes("k", 8, 1)  # the same for all of its lanes
    w.statement(statement)
