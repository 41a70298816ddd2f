"""Loop nests as CUDA: which loops are batches, and what lanes do."""

import torch

from gossamer.compiler import parse
from gossamer.compiler.gpu.design import Design
from gossamer.compiler.gpu.emit import Writer
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.loops.lower import lower
from tests.compiler.gpu.emulated import arg, sparse


def written(expression, groups, *tensors, out="dense"):
    sizes = {v: size for g, t in zip(groups, tensors, strict=True) for v, size in zip(g, t.shape, strict=True)}
    args = [arg(g, t) for g, t in zip(groups, tensors, strict=True)]
    made = Design(parse(expression, [t.dim() for t in tensors]), args, sizes, "float", 4, out, 16)
    writer = Writer(lower(made.program), made.mapping)
    writer.block(writer.nest.body)
    return "\n".join(writer.lines)


def test_columns_are_shared_and_loads_are_wide():
    text = written("ij,jk->ik", ["ij", "jk"], sparse(5, 20), torch.ones(20, 32))
    assert "blockIdx.y * 32 + lane * 4" in text and "t1_[u] = *(const Line*)(B_val" in text
    assert "out_acc[e] += (widen(t0_[u]) * widen(t1_[u].e[e]));" in text and "total(" not in text


def test_terms_are_shared_and_added_up_after_the_loops():
    short = torch.ones(5, 12), torch.ones(20, 12)  # three loads: too few for rows in registers
    text = written("ij,id,jd->ij", ["ij", "id", "jd"], sparse(5, 20), *short, out=0)
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
