"""Programs for the GPU: leads, orders of loops, nests that the interpreter of nests runs as well."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import parse
from gossamer.compiler.gpu.design import PIECE, Design, NoKernelError, roles
from gossamer.compiler.loops import names
from gossamer.compiler.loops.lower import lower
from gossamer.compiler.loops.machine import Machine
from tests.compiler.gpu.emulated import arg, sparse


def design(expression, groups, *tensors, out="dense"):
    args = [arg(g, t) for g, t in zip(groups, tensors, strict=True)]
    sizes = {v: size for g, t in zip(groups, tensors, strict=True) for v, size in zip(g, t.shape, strict=True)}
    return Design(parse(expression, [t.dim() for t in tensors]), args, sizes, "float", 4, out, 16)


def test_roles():
    a, b = sparse(5, 6), sparse(6, 7, density=0.9)
    found = roles(parse("ij,jk->ik", (2, 2)), [arg("ij", a), arg("jk", b)], "dense")
    assert (found.lead, found.outer, found.inner, found.late) == (0, ("i",), ("j",), ("k",))
    args = [arg("ij", a), arg("id", torch.ones(5, 4)), arg("jd", torch.ones(6, 4))]
    found = roles(parse("ij,id,jd->ij", (2, 2, 2)), args, 0)
    assert (found.outer, found.inner, found.summed) == (("i", "j"), (), ("d",))
    with pytest.raises(NoKernelError, match="with each of its indices once"):
        roles(parse("ii->i", (2,)), [arg("ii", sparse(5, 5))], "dense")
    with pytest.raises(NoKernelError, match="pattern"):
        roles(parse("ij->ij", (2,)), [arg("ij", a)], gs.CSR())


def test_orders_and_what_lanes_share():
    a = sparse(5, 60)
    spmm = design("ij,jk->ik", ["ij", "jk"], a, torch.ones(60, 32))
    assert spmm.order == ("i", "k", "j") and spmm.mapping.role == "strip" and spmm.mapping.var == "k"
    assert design("ij,j->i", ["ij", "j"], a, torch.ones(60)).mapping.role == "sum"
    assert design("ij->", ["ij"], a).order == (PIECE, "i", "j")
    assert design("ij->j", ["ij"], a).sorted.where is not None  # sorted by columns
    assert design("max: ij->i", ["ij"], a).mapping.role == ""


def test_the_nest_as_it_stands():
    """The interpreter of nests runs the pieces of a product, and their sums, as the GPU does."""
    a, x = sparse(3, 200, density=0.1), torch.randn(200, 4)
    made = design("ij,jk->ik", ["ij", "jk"], a, x)
    assert made.cut.slots == 200 // 32 + 1 and made.cut.number == 2 + made.cut.slots
    nest = lower(made.program)
    assert str(nest).splitlines()[2] == "parallel for A0.q in 0 .. A.count0:" and "if A.slot0[A0.q] < 0:" in str(nest)
    arrays = {names.array(0, n[:-1], int(n[-1])): t for n, t in made.lead.arrays.items()}
    arrays |= {"A.val": a.values(), "B.val": x.reshape(-1)}
    arrays |= {"out": torch.zeros(12), "out.part": torch.zeros(4 * made.cut.slots)}
    sizes = {"i.size": 3, "j.size": 200, "k.size": 4, "A.count0": made.cut.number}
    sizes |= {"B.s0": 4, "out.s0": 4, "out.total": 4}
    done = Machine(arrays, sizes).run(nest)
    out = done["out"].view(3, 4)
    out[2] += done["out.part"].view(-1, 4).sum(0)
    torch.testing.assert_close(out, a.to_dense() @ x, rtol=1e-4, atol=1e-4)
