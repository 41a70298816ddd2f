"""Sums along a sparse level: rows of every length, one after the other, with masked ends and without."""

import itertools

import pytest
import torch

from gossamer.compiler.emit.gathers import carried, masks
from gossamer.compiler.loops.nest import ZERO, Acc, Bin, For, If, Into, Let, Load, Nest, Num, Store, Var
from gossamer.compiler.run import runtime
from tests.compiler.emit.built import ran

pytestmark = pytest.mark.skipif(not runtime.available(), reason="no C compiler")
Q, ROW = Var("A1.q"), Var("i")
LENGTHS = [0, 1, 2, 3, 4, 5, 7, 8, 9, 0, 0, 12, 15, 16, 17, 20, 23, 24, 25, 33, 0]
TYPES = [("float", torch.float32), ("double", torch.float64), ("long", torch.int64)]
ARRAYS = ("A.pos1", "int"), ("A.crd1", "int")


def rows(value, ragged=False, term=None, inside=None):
    """out[i] = the sum over row i of A.val[q] * B.val[crd[q]]."""
    term = term or Bin("*", Load("A.val", Q), Load("B.val", Var("j")))
    begin, end = Load("A.pos1", ROW), Load("A.pos1", Bin("+", ROW, Num(1)))
    sum = For("A1.q", begin, end, [Let("j", Load("A.crd1", Q)), Into("out.acc", term)])
    body = [
        Acc("out.acc"),
        *([If(Bin("<", ROW, Num(99)), [sum])] if inside else [sum]),
        Store("out", ROW, Var("out.acc")),
    ]
    arrays = (*ARRAYS, ("A.val", value), ("B.val", value), ("C.val", value), ("out", value))
    loop = For("i", ZERO, Var("i.size"), body, "units")
    return Nest("", arrays, ("i.size",), [loop], value, Var("i.size"), indices=("i", "j"), ragged=ragged)


def operands(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pos = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    crd = torch.randint(50, (int(pos[-1]),), generator=generator).int()
    a, b, c = (torch.randint(-4, 5, (n,), generator=generator).to(dtype) for n in (len(crd), 50, 50))
    return {"A.pos1": pos, "A.crd1": crd, "A.val": a, "B.val": b, "C.val": c,
            "out": torch.full((len(LENGTHS),), 9, dtype=dtype)}  # fmt: skip


def wanted(t, product):
    pos = t["A.pos1"].tolist()
    return [int(product[p:q].sum()) for p, q in itertools.pairwise(pos)]


@pytest.mark.parametrize("value, dtype", TYPES)
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("chunks", [1, 4])
def test_rows_of_every_length(value, dtype, ragged, chunks):
    t = operands(dtype)
    source = ran(rows(value, ragged), t, {"i.size": len(LENGTHS)}, chunks)
    assert t["out"].tolist() == wanted(t, t["A.val"] * t["B.val"][t["A.crd1"].long()])
    assert ("v_gathered(B_val" in source) == (ragged and value != "long")


@pytest.mark.parametrize("ragged", [False, True])
def test_terms_of_several_operands_and_numbers(ragged):
    """What is not of a lane may be infinite: lanes that are not there are cleared, not multiplied by it."""
    t = operands(torch.float32)
    term = Bin("*", Load("A.val", Q), Bin("-", Load("B.val", Var("j")), Bin("*", Load("C.val", ROW), Num(2.0))))
    source = ran(rows("float", ragged, term), t, {"i.size": len(LENGTHS)})
    at = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    assert t["out"].tolist() == wanted(t, t["A.val"] * (t["B.val"][t["A.crd1"].long()] - 2 * t["C.val"][at]))
    t["C.val"][:] = float("inf")
    ran(rows("float", ragged, Bin("*", Load("C.val", ROW), Load("A.val", Q))), t | {"A.val": t["A.val"].abs() + 1}, {
        "i.size": len(LENGTHS)})  # fmt: skip
    assert t["out"].tolist() == [float("inf") if n else 0.0 for n in LENGTHS] and source


def test_one_counter_for_all_rows():
    """A row begins where the one before it ended; one that is not always walked reads where it begins."""
    t = operands(torch.float32)
    product = t["A.val"] * t["B.val"][t["A.crd1"].long()]
    for inside in (False, True):
        source = ran(rows("float", inside=inside), t, {"i.size": len(LENGTHS)})
        assert t["out"].tolist() == wanted(t, product)
        assert ("A_pos1[lo]" in source) != inside and ("long A1_q = A_pos1[i]" in source) == inside


def test_masks_are_for_floating_point_alone():
    assert masks("long") == "" and "gather3siv8sf" in masks("float") and "gather3siv4df" in masks("double")
    assert carried.__doc__
