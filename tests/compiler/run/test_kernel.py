"""Kernels: one for equal programs, their text, their units, and what happens without memory."""

import ctypes
from dataclasses import replace

import pytest
import torch

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import LevelUse, Output, Program, Stack, Strided, Walk
from gossamer.compiler.run import runtime
from gossamer.compiler.run.kernel import Kernel, kernel

compiled = pytest.mark.skipif(not runtime.available(), reason="no C compiler")
S = parse("ij,j->i", (2, 1))
DENSE = Program(S, S.tree, (Strided(("i", "j"), "j"), Strided(("j",), "j")), Output("dense", ("i",), "i"), ("i", "j"))


def test_equal_programs_share_a_kernel():
    assert kernel(DENSE) is kernel(replace(DENSE)) and kernel(DENSE) is not kernel(replace(DENSE, value="double"))


def test_text():
    made = Kernel(DENSE)
    assert made.loops.splitlines()[2] == "parallel for i in 0 .. i.size:" and made.covers
    assert "run_fill" in made.source and "run_count" not in made.source


def test_units():
    assert Kernel(DENSE).units({"i.size": 7, "j.size": 3}, {}) == 7
    walk = LevelUse(Walk("pos[p]", "pos[p + 1]", "crd[at]"), "i", 0, (("pos", "int"), ("crd", "int")))
    s = parse("i->i", (1,))
    sparse = Kernel(Program(s, s.tree, (Stack((walk,)),), Output("pattern", ("i",), like=0), ("i",)))
    assert sparse.units({"i.size": 9}, {"A.pos0": torch.tensor([0, 4]), "A.crd0": torch.arange(4)}) == 4
    s = parse("i,i->", (1, 1))
    whole = Program(s, s.tree, (Strided(("i",), None),) * 2, Output("dense", ()), ("i",))
    assert Kernel(replace(whole, statement=replace(s, reduce="max"))).units({"i.size": 9}, {}) == 1


@compiled
@pytest.mark.parametrize("rows, cols", [(0, 3), (1, 1), (3, 0), (5, 33)])
def test_run(rows, cols):
    made = kernel(DENSE)
    a, x, out = torch.arange(float(rows * cols)), torch.ones(cols), torch.full((rows + 1,), -1.0)
    known = {"i.size": rows, "j.size": cols, "A.s0": cols, "out.total": rows}
    sizes = (ctypes.c_long * len(made.nest.sizes))(*(known[n] for n in made.nest.sizes))
    assert made.run("fill", [t.data_ptr() for t in (a, x, out)], sizes, 1) == 0
    assert out.tolist() == [*a.view(rows, cols).sum(1).tolist(), -1]


def test_no_memory_for_a_workspace():
    s = parse("ik,kj->ij", (2, 2))
    dense = (Strided(("i", "k"), "k"), Strided(("k", "j"), "j"))
    made = Kernel(Program(s, s.tree, dense, Output("rows", ("i", "j"), "j"), ("i", "k", "j"), workspace="hash"))
    assert "run_count" in made.source
    made.functions = {"fill": lambda *args: -1}
    with pytest.raises(MemoryError, match="no memory for a workspace over 'j'"):
        made.run("fill", [0] * len(made.nest.arrays), None, 1)
