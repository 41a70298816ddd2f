"""Where results go: places, keys, sums without a turn."""

from dataclasses import replace

import pytest

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import Output, Program, Stack, Strided
from gossamer.compiler.language.tree import Access
from gossamer.compiler.loops import names, results
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Append,
    For,
    If,
    Into,
    Let,
    Num,
    Scatter,
    Set,
    Store,
    Var,
    While,
    show,
)

STATEMENT = parse("ik,kj->ij", (2, 2))
OPERANDS = (Stack(()), Strided(("k", "j"), "j"))
AT = {0: (2, Var("A1.q"))}


def program(kind="dense", order="ijk", **more):
    return Program(STATEMENT, STATEMENT.tree, OPERANDS, Output(kind, ("i", "j"), "j", 0), tuple(order), **more)


def put(p, count=False):
    return results.put(p, Num(2.0), AT, count)


def test_places_in_ordinary_tensors():
    assert show(results.strided("B", ("k", "j"), "j")) == "k * B.s0 + j"
    assert show(results.strided("B", ("k", "j"), "k")) == "j * B.s1 + k"
    assert show(results.strided("B", ("k", "j"), None)) == "k * B.s0 + j * B.s1"
    assert results.strided("B", (), None) == ZERO


def test_values():
    assert show(results.value(program(), STATEMENT.tree, AT)) == "A.val[A1.q] * B.val[k * B.s0 + j]"
    assert results.value(program(), Access(0, stored=True), AT) == Num(1.0)
    s = parse("relu(ij) * 1 + 2 -> ij", (2,))
    assert show(results.value(program(), s.tree, AT)) == "relu(A.val[A1.q]) + 2"


@pytest.mark.parametrize("order, sign", [("ijk", "="), ("ikj", "+=")])
def test_dense_results_are_written_once_or_added_to(order, sign):
    (stored,) = put(program(order=order))
    assert isinstance(stored, Store) and stored.sign == sign and show(stored.index) == "i * out.s0 + j"


def test_other_results():
    assert put(program("pattern")) == [Store(names.OUT, Var("A1.q"), Num(2.0))]
    assert put(program("rows")) == [Append(Var("j"), Num(2.0))]
    (by_key,) = put(program("keys"))
    assert isinstance(by_key, Append) and show(by_key.coord) == "i * j.size + j"
    scatters = program("rows", "ikj", workspace="dense")
    assert put(scatters) == [Scatter(Var("j"), Num(2.0))]
    assert put(scatters, count=True) == [Scatter(Var("j"), Num(0.0))]  # only marked


def test_means_are_divided_by_every_size():
    mean = parse("mean: ij->", (2,))
    p = Program(mean, mean.tree, OPERANDS[1:], Output("dense", ()), ("i", "j"))
    (stored,) = put(p)
    assert show(stored.value) == "(2 / i.size) / j.size"


def test_loops_without_a_turn():
    counted = For("i", ZERO, Var("i.size"), [Into("acc", ONE)])
    assert not results.may_miss([counted, Let("n", ONE)])
    assert results.may_miss([replace(counted, begin=Var("A.pos"))])
    assert results.may_miss([replace(counted, body=[If(ONE, [])])]) and results.may_miss([While(ONE)])


def test_sums_are_marked_wherever_they_stand():
    seen, into = Set(names.SEEN, ONE), Into("acc", ONE)
    body = [For("i", ZERO, ONE, [If(ONE, [into], [While(ONE, [into])])]), Let("n", ONE)]
    marked = results.marked(body)
    assert marked == [For("i", ZERO, ONE, [If(ONE, [into, seen], [While(ONE, [into, seen])])]), Let("n", ONE)]
    assert body[0].body[0].body == [into]  # the nest that was given is as before
