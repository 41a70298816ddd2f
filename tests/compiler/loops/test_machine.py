"""The interpreter of loop nests, statement by statement."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.loops import names
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
)  # fmt: skip


def ran(body, arrays=(), **sizes):
    machine = Machine(dict(arrays), sizes)
    machine.run(Nest("", (), (), body, "double"))
    return machine


def test_a_product_of_a_sparse_row_by_hand():
    crd, turn = Load("crd", Var("q")), Bin("*", Load("val", Var("q")), Load("x", Load("crd", Var("q"))))
    body = [Acc(names.ACC), For("q", ZERO, Num(2), [Into(names.ACC, turn)]), Store("out", ZERO, Var(names.ACC))]
    machine = ran(body, {"crd": [0, 3], "val": [2.0, 5.0], "x": [1.0, 0, 0, 10], "out": [0.0]})
    assert machine.arrays["out"] == [52] and machine.value(crd) == 3


def test_loops_and_branches():
    odd = If(Bin("==", Bin("%", Var("i"), Num(2)), ONE), [Set("n", Var("i"), "+=")], [Set("m", ONE, "+=")])
    machine = ran([Let("n", ZERO, True), Let("m", ZERO, True), For("i", ONE, Var("size"), [odd])], size=6)
    assert machine.names["n"] == 1 + 3 + 5 and machine.names["m"] == 2
    machine = ran([Let("n", ONE, True), While(Bin("<", Var("n"), Num(100)), [Set("n", Bin("*", Var("n"), Num(3)))])])
    assert machine.names["n"] == 243
    assert ran([Let("n", ZERO, True), For("i", Num(3), ZERO, [Set("n", ONE)])]).names["n"] == 0  # no turn


@given(st.lists(st.integers(0, 20), unique=True).map(sorted), st.integers(0, 20))
def test_find(crd, want):
    end = Num(len(crd))
    at = ran([Find("q", "crd", ZERO, end, Num(want))], {"crd": crd}).names["q"]
    assert at == (crd.index(want) if want in crd else len(crd))


def test_find_looks_no_further_than_its_range():
    crd = torch.tensor([0, 5, 1, 5])
    assert ran([Find("q", "crd", Num(2), Num(3), Num(5))], {"crd": crd}).names["q"] == 3
    assert ran([Find("q", "crd", ZERO, Num(2), Num(5))], {"crd": crd}).names["q"] == 1


def test_a_workspace_is_drained_in_order_and_left_empty():
    drain = Drain("j", "w", [Append(Var("j"), Var("w"))])
    machine = ran([*(Scatter(Num(c), Num(v)) for c, v in ((7, 1.0), (2, 2.0), (7, 3.0))), drain, drain])
    assert machine.entries == [(2, 2.0), (7, 4.0)] and machine.names[names.COUNT] == 2


@pytest.mark.parametrize("sign, want", [("=", 5), ("+=", 8), ("max=", 5), ("min=", 3)])
def test_assignments(sign, want):
    assert Machine.combine(3.0, sign, 5.0) == want
    assert sign in ("=", "+=") or math.isnan(Machine.combine(math.nan, sign, 5.0))
    assert math.isnan(Machine.combine(3.0, sign, math.nan))


def test_the_right_side_of_and_is_not_read_where_the_left_is_false():
    machine = Machine({"crd": [4]}, {"q": 1})
    assert not machine.value(Bin("&&", Bin("<", Var("q"), ONE), Bin("==", Load("crd", Var("q")), Num(4))))


def test_negative_places_are_refused():
    machine = Machine({"A": [1.0, 2.0]}, {})
    with pytest.raises(IndexError, match=r"A\[-1\]"):
        machine.value(Load("A", Num(-1)))
    with pytest.raises(IndexError, match=r"A\[-2\]"):
        machine.statement(Store("A", Num(-2), Num(0.0)))


def test_values():
    machine = Machine({}, {"n": 7})
    assert machine.value(Call("relu", (Num(-2.0),))) == 0 and machine.value(Call("max", (Num(1.0), Num(3.0)))) == 3
    assert machine.value(Bin("/", Var("n"), Num(2))) == 3 and machine.value(Bin("/", Num(7.0), Num(2))) == 3.5
    assert [machine.value(Bin(sign, Var("n"), Num(2))) for sign in ("min", "max", ">>", "&", "%")] == [2, 7, 1, 2, 1]
