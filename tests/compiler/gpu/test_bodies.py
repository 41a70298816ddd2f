"""What the body of a loop is."""

from gossamer.compiler.gpu.bodies import adds_to, factors, once, row_of, straight
from gossamer.compiler.loops.nest import ONE, ZERO, Acc, Bin, For, Into, Let, Load, Num, Store, Var

TERM = Into("out.acc", Load("A.val", Var("A1.q")))
COLUMN = Let("j", Load("A.crd1", Var("A1.q")))
TERMS = For("d", ZERO, Var("d.size"), [Into("out.acc", Load("B.val", Var("d")))])


def row(*body):
    return For("A1.q", ZERO, Var("n"), [COLUMN, *body])


def test_loops_of_one_turn():
    assert once(For("q", Var("p"), Bin("+", Var("p"), ONE))) and not once(For("q", ZERO, Var("n")))
    assert once(For("q", ZERO, ONE)) and not once(Acc("out.acc"))


def test_batches_have_names_and_one_sum():
    inner = For("A2.q", Var("A1.q"), Bin("+", Var("A1.q"), ONE), [Let("k", Load("A.crd2", Var("A2.q"))), TERM])
    found = straight([Let("j", Load("A.crd1", Var("A1.q"))), inner])
    assert [type(s).__name__ for s in found] == ["Let", "Let", "Let", "Into"]
    assert straight([TERM, TERM]) is None and straight([For("k", ZERO, Num(3), [TERM])]) is None
    assert adds_to(inner, "out.acc") and not adds_to(Store("out", ZERO, Var("out.acc")), "out.acc")


def test_rows_are_one_sum_for_each_entry():
    store = Store("out", Var("A1.q"), Var("out.acc"))
    found = row_of(row(Acc("out.acc"), TERMS, store), "d")
    assert found is not None and found.lets == [COLUMN] and found.terms is TERMS and found.store is store
    inner = For("A2.q", Var("A1.q"), Bin("+", Var("A1.q"), ONE), [TERMS])
    found = row_of(row(inner), "d")  # a loop of one turn is a name
    assert found is not None and [x.name for x in found.lets] == ["j", "A2.q"] and found.store is None
    assert row_of(row(TERM), "d") is None and row_of(row(TERMS), "e") is None and row_of(row(TERMS, TERMS), "d") is None
    highest = For("d", ZERO, Var("d.size"), [Into("out.acc", Load("B.val", Var("d")), "max=")])
    assert row_of(row(highest), "d") is None


def test_factors():
    a, b = Var("a"), Bin("+", Var("b"), Num(1))
    assert factors(Bin("*", a, Bin("*", b, a))) == [a, b, a] and factors(b) == [b]
