"""Loop nests as text, and expressions read and written again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.loops.machine import Machine
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
    add,
    both,
    mul,
    names_in,
    show,
    substituted,
)  # fmt: skip
from gossamer.compiler.loops.walks import read

ROW, COL = Var("i"), Var("j")


def test_every_statement_as_text():
    body = [
        Let("n", ZERO, True),
        For(
            "i",
            ZERO,
            Var("i.size"),
            [Acc("acc"), Into("acc", Load("A.val", ROW)), Store("out", ROW, Var("acc"))],
            "units",
        ),
        While(Bin("<", Var("n"), ONE), [Set("n", ONE, "+=")]),
        If(Bin("==", ROW, COL), [Scatter(ROW, Num(0.5))], [Append(COL, Call("relu", (Num(2.0),)))]),
        Find("q", "A.crd1", ZERO, ONE, COL),
        Drain("j", "w", [Append(COL, Var("w"))]),
    ]
    assert str(Nest("first\nsecond", (), (), body, "float", workspace="hash", workspace_size=Var("j.size"))) == (
        "# first\n# second\n# workspace: hash, j.size coordinates\n"
        "n = 0\n"
        "parallel for i in 0 .. i.size:\n  acc = 0\n  acc += A.val[i]\n  out[i] = acc\n"
        "while n < 1:\n  n += 1\n"
        "if i == j:\n  workspace[i] += 0.5\nelse:\n  append j, relu(2)\n"
        "q = find j in A.crd1[0 .. 1]\n"
        "for j, w in workspace:\n  append j, w"
    )


def test_sums_and_products_leave_out_what_changes_nothing():
    assert add(ZERO, ROW) == add(ROW, ZERO) == mul(ONE, ROW) == mul(ROW, ONE) == ROW
    assert mul(ZERO, ROW) == mul(ROW, ZERO) == ZERO and add(ROW, COL) == Bin("+", ROW, COL)
    assert both([]) is None and both([ROW]) == ROW and both([ROW, COL, ROW]) == Bin("&&", Bin("&&", ROW, COL), ROW)


def test_names_are_found_and_replaced():
    e = Bin("+", Load("pos", Bin("*", ROW, Num(2))), Call("relu", (COL,)))
    assert names_in(e) == {"pos", "i", "j"}
    assert show(substituted(e, {"i": Bin("+", COL, ONE), "j": Var("k")})) == "pos[(k + 1) * 2] + relu(k)"
    assert substituted(ROW, {"i": add(ROW, ONE)}) == add(ROW, ONE)  # one turn later: the name may stand for itself


@pytest.mark.parametrize("text", ["p + unknown", "pos(p)", "crd[p]", "p + 0.5", "p < 1 < 2", "p if p else p", "-p"])
def test_walks_that_are_not_understood(text):
    with pytest.raises(ValueError, match=r"a level has .*; known names are p, pos"):
        read(text, {"p": ROW}, {"pos": "A.pos0"})


SIGNS = ["+", "-", "*", "/", "%", ">>", "<<", "&", "^", "|"]
LEAVES = st.sampled_from([ROW, COL, Num(2), Num(3), Load("pos", ROW)])
EXPRESSIONS = st.recursive(LEAVES, lambda e: st.builds(Bin, st.sampled_from(SIGNS), e, e), max_leaves=6)


@given(EXPRESSIONS, st.sampled_from(["", "<", "=="]))
def test_text_means_the_expression(e, compared):
    e = Bin(compared, e, COL) if compared else e
    again = read(show(e), {"i": ROW, "j": COL}, {"pos": "pos"})
    assert _value(again) == _value(e), show(e)


def _value(e):
    try:
        return Machine({"pos": [5, 7, 11, 13]}, {"i": 3, "j": 6}).value(e)
    except (ZeroDivisionError, ValueError) as error:  # % 0, or a shift by less than nothing
        return type(error)
