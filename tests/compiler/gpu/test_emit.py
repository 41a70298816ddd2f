"""Loop nests as CUDA: which loops are batches, and what lanes do."""

import torch

from gossamer.compiler import parse
from gossamer.compiler.gpu.design import Design
from gossamer.compiler.gpu.emit import Writer, adds_to, once, straight
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.loops.lower import lower
from gossamer.compiler.loops.nest import ONE, ZERO, Acc, Bin, For, Into, Let, Load, Num, Store, Var
from tests.compiler.gpu.emulated import arg, sparse

TERM = Into("out.acc", Load("A.val", Var("A1.q")))


def written(expression, groups, *tensors, out="dense"):
    sizes = {v: size for g, t in zip(groups, tensors, strict=True) for v, size in zip(g, t.shape, strict=True)}
    args = [arg(g, t) for g, t in zip(groups, tensors, strict=True)]
    made = Design(parse(expression, [t.dim() for t in tensors]), args, sizes, "float", 4, out, 16)
    writer = Writer(lower(made.program), made.mapping)
    writer.block(writer.nest.body)
    return "\n".join(writer.lines)


def test_loops_of_one_turn():
    assert once(For("q", Var("p"), Bin("+", Var("p"), ONE))) and not once(For("q", ZERO, Var("n")))
    assert once(For("q", ZERO, ONE)) and not once(Acc("out.acc"))


def test_batches_have_names_and_one_sum():
    inner = For("A2.q", Var("A1.q"), Bin("+", Var("A1.q"), ONE), [Let("k", Load("A.crd2", Var("A2.q"))), TERM])
    found = straight([Let("j", Load("A.crd1", Var("A1.q"))), inner])
    assert [type(s).__name__ for s in found] == ["Let", "Let", "Let", "Into"]
    assert straight([TERM, TERM]) is None and straight([For("k", ZERO, Num(3), [TERM])]) is None
    assert adds_to(inner, "out.acc") and not adds_to(Store("out", ZERO, Var("out.acc")), "out.acc")


def test_columns_are_shared_and_loads_are_wide():
    text = written("ij,jk->ik", ["ij", "jk"], sparse(5, 20), torch.ones(20, 32))
    assert "blockIdx.y * 32 + lane * 4" in text and "t1_[u] = *(const Line*)(B_val" in text
    assert "out_acc[e] += (widen(t0_[u]) * widen(t1_[u].e[e]));" in text and "total(" not in text


def test_terms_are_shared_and_added_up_after_the_loops():
    text = written("ij,id,jd->ij", ["ij", "id", "jd"], sparse(5, 20), torch.ones(5, 64), torch.ones(20, 64), out=0)
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("out_acc = total(out_acc);") == next(n for n, x in enumerate(lines) if "if (active" in x) - 1
    nested = written("ij,id,jd->i", ["ij", "id", "jd"], sparse(5, 20), torch.ones(5, 64), torch.ones(20, 64))
    marks = [line for line in nested.splitlines() if "total(" in line or "real out_acc" in line]
    depth = [len(line) - len(line.lstrip()) for line in marks]
    assert len(depth) == 2 and depth[0] == depth[1]  # once, where the sum began


def test_one_thread_for_a_turn():
    writer = Writer(lower_of_maximum(), Mapping())
    writer.block(writer.nest.body)
    text = "\n".join(writer.lines)
    assert "lane" not in text and "x_ > out_acc" in text


def lower_of_maximum():
    a = sparse(5, 20)
    return lower(Design(parse("max: ij->i", (2,)), [arg("ij", a)], {"i": 5, "j": 20}, "float", 4, "dense", 16).program)
