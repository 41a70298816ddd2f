"""Nests on tensors: the interpreter and C do the same, to the last bit."""

import pytest
import torch

from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.loops.nest import ONE, ZERO, Bin, Drain, For, If, Let, Load, Num, Scatter, Set, Store, Var
from gossamer.compiler.loops.uses import routine
from gossamer.compiler.run.runtime import available

WAYS = ["interpret", pytest.param("run", marks=pytest.mark.skipif(not available(), reason="no C compiler"))]


def copies(ctype):
    body = [For("k", ZERO, Var("n"), [Store("to", Var("k"), Load("from", Var("k")))])]
    return Passes({"copy": routine("copy", body, {"from": ctype, "to": ctype})})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("dtype", "ctype"),
    [(torch.float32, "int"), (torch.bfloat16, "short"), (torch.bool, "char"), (torch.complex64, "long"),
     (torch.complex128, "value16"), (torch.float64, "double"), (torch.int32, "unsigned int")],
)  # fmt: skip
def test_values_of_any_type_are_copied(way, dtype, ctype):
    x = torch.tensor([1.5, -2.0, 0.0, 3.25]).to(dtype)
    out = torch.zeros(4, dtype=dtype)
    assert getattr(copies(ctype), way)("copy", {"from": x, "to": out}, {"n": 3}) == 0
    assert out.tolist() == [*x[:3].tolist(), 0]


@pytest.mark.parametrize("way", WAYS)
def test_a_result_and_an_array_that_is_not_given(way):
    note = If(Var("out.given"), [Store("out", Var("n"), Var("k"))])
    body = [Let("n", ZERO, True), For("k", ZERO, Var("many"), [note, Set("n", Num(2), "+=")])]
    passes = Passes({"count": routine("count", body, {"out": "int"}, "n")})
    assert getattr(passes, way)("count", {"out": None}, {"many": 5, "out.given": 0}) == 10


@pytest.mark.parametrize("way", WAYS)
def test_a_workspace_gives_coordinates_in_order_once_each(way):
    mark = For("k", ZERO, Var("n"), [Scatter(Load("in", Var("k")), Num(0.0))])
    drain = Drain("one", "", [Store("out", Var("next"), Var("one")), Set("next", ONE, "+=")])
    body = [Let("next", ZERO, True), mark, drain, drain]  # the second finds nothing
    passes = Passes({"sort": routine("sort", body, {"in": "int", "out": "int"}, "next", Var("size"))})
    x, out = torch.tensor([130, 3, 64, 3, 63, 0], dtype=torch.int32), torch.full((6,), -1, dtype=torch.int32)
    assert getattr(passes, way)("sort", {"in": x, "out": out}, {"n": 6, "size": 131}) == 5
    assert out.tolist() == [0, 3, 63, 64, 130, -1]


@pytest.mark.skipif(not available(), reason="no C compiler")
def test_without_memory_for_a_workspace():
    body = [Let("n", ZERO, True), For("k", ZERO, Var("n.max"), [Scatter(ZERO, Num(0.0))])]
    passes = Passes({"mark": routine("mark", body, {}, "n", Bin("*", Var("size"), ONE))})
    with pytest.raises(MemoryError, match="no memory for a workspace of mark"):
        passes.run("mark", {}, {"n.max": 0, "size": 2**60})


def test_an_integer_that_is_missing_is_an_error():
    with pytest.raises(KeyError, match="n"):
        copies("int").interpret("copy", {"from": torch.zeros(2), "to": torch.zeros(2)}, {})
