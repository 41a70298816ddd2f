"""What statements use: every kind of statement, and what they name themselves."""

from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Acc,
    Append,
    Bin,
    Blank,
    Drain,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Num,
    Prefetch,
    Scatter,
    Set,
    Stop,
    Store,
    Var,
    While,
)  # fmt: skip
from gossamer.compiler.loops.uses import routine, used


def test_by_hand():
    body = [Let("n", ZERO, True), For("i", ZERO, Var("size"), [Store("out", Var("i"), Load("A", Var("n")))])]
    assert list(used(body)) == ["size", "out", "A"]
    nest = routine("title", body, {"out": "int", "A": "int", "other": "long"}, "n")
    assert set(nest.arrays) == {("out", "int"), ("A", "int")} and nest.sizes == ("size",) and nest.result == "n"


def test_every_statement():
    def of(*body):
        return set(used(list(body)))

    a, b = Var("a"), Var("b")
    assert of(Let("n", a), Set("n", b)) == {"a", "b"} and of(Set("n", b)) == {"n", "b"}
    assert of(Acc("s"), Into("s", a)) == {"a"} and of(Store("x", a, b)) == {"x", "a", "b"}
    assert of(While(Bin("<", a, ONE), [Stop()])) == {"a"}
    assert of(If(a, [Set("n", ONE)], [Set("m", ONE)])) == {"a", "n", "m"}
    assert of(Find("q", "crd", a, b, Var("i"))) == {"crd", "a", "b", "i"}
    assert of(Scatter(a, Num(0.0)), Drain("c", "w", [Append(Var("c"), Var("w"))])) == {"a"}
    assert of(Blank("none", "x", a, 16), Set("n", Var("none"))) == {"x", "a", "n"}
    assert of(Prefetch("x", a)) == {"x", "a"}


def test_coordinates_of_a_workspace_are_counted_by_an_integer():
    nest = routine("", [Scatter(ZERO, Num(0.0))], {}, marks=Var("size"))
    assert nest.sizes == ("size",) and nest.workspace == "bits"
    assert routine("", [], {}).workspace is None
