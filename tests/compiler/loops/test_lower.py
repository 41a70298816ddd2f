"""Loop nests of programs: run by the interpreter, next to torch; which of them write every place."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer.compiler.language.notation import parse
from gossamer.compiler.language.program import LevelUse, Output, Program, Stack, Strided, Walk
from gossamer.compiler.loops.lower import Lowering, lower
from gossamer.compiler.loops.machine import Machine
from gossamer.compiler.loops.nest import Var

FULL = Walk("0", "size", "q", locate="p * size + i")
ROWS = Walk("pos[p]", "pos[p + 1]", "crd[at]")


def csr(rows, columns):
    levels = (LevelUse(FULL, rows, 0), LevelUse(ROWS, columns, 1, (("pos", "int"), ("crd", "int"))))
    return Stack(levels)


def arrays_of(k, matrix):
    """The arrays of a matrix in CSR, as operand k."""
    crd = [c for row in matrix for c, x in enumerate(row) if x]
    pos = [0]
    for row in matrix:
        pos.append(pos[-1] + sum(x != 0 for x in row))
    letter = "AB"[k]
    return {f"{letter}.pos1": pos, f"{letter}.crd1": crd, f"{letter}.val": [x for row in matrix for x in row if x]}


A = [[1.0, 0, 2], [0, 0, 0], [0, 3, 4]]
B = [[0.0, 5, 0], [6, 0, 0], [0, 7, 8]]


def ran(program, arrays, size=3):
    sizes = {f"{v}.size": size for v in "ijk"} | {"out.s0": size, "B.s0": size}
    machine = Machine({"out": [0.0] * size * size, "out.count": [0] * size} | arrays, sizes)
    machine.run(lower(program))
    return machine


def matmul(order, kind="dense", workspace=None):
    s = parse("ik,kj->ij", (2, 2))
    return Program(s, s.tree, (csr("i", "k"), csr("k", "j")), Output(kind, ("i", "j"), "j"), tuple(order),
                   workspace=workspace)  # fmt: skip


def test_a_product_of_sparse_matrices_by_hand():
    machine = ran(matmul("ikj"), arrays_of(0, A) | arrays_of(1, B))
    assert machine.arrays["out"] == [0, 19, 16, 0, 0, 0, 18, 28, 32]


def test_rows_whose_coordinates_are_known_are_computed_and_not_counted():
    nest = Lowering(matmul("ikj", "rows", "dense"), known=True).nest()
    machine = Machine({"out.count": [9] * 3} | arrays_of(0, A) | arrays_of(1, B), {f"{v}.size": 3 for v in "ijk"})
    machine.run(nest)
    assert machine.entries == [(1, 19), (2, 16), (0, 18), (1, 28), (2, 32)]
    assert machine.arrays["out.count"] == [9] * 3 and "# the coordinates of the result are given" in str(nest)


def test_sparse_rows_of_a_product():
    machine = ran(matmul("ikj", "rows", "dense"), arrays_of(0, A) | arrays_of(1, B))
    assert machine.entries == [(1, 19), (2, 16), (0, 18), (1, 28), (2, 32)]
    assert machine.arrays["out.count"] == [2, 0, 3]


def test_a_nest_that_counts_appends_nothing():
    nest = Lowering(matmul("ikj", "rows", "dense"), count=True).nest()
    assert "append" not in str(nest) and "out.n += 1" in str(nest) and nest.workspace == "dense"


@pytest.mark.parametrize("order, covers", [("ijk", True), ("ikj", False)])
def test_which_nests_write_every_place(order, covers):
    s = parse("ik,kj->ij", (2, 2))
    dense = (Strided(("i", "k"), "k"), Strided(("k", "j"), "j"))
    program = Program(s, s.tree, dense, Output("dense", ("i", "j"), "j"), tuple(order))
    lowering = Lowering(program)
    nest = lowering.nest()
    assert lowering.covers is covers and nest.body[0].role == "units"


def test_a_sum_over_everything_is_shared_in_parts():
    s = parse("ij->", (2,))
    nest = lower(Program(s, s.tree, (Strided(("i", "j"), "j"),), Output("dense", ()), ("i", "j")))
    assert nest.parts and nest.units == Var("i.size") and "in parts for i in 0 .. i.size" in str(nest)


MATRIX = st.lists(st.lists(st.sampled_from([0.0, 0.0, 1.0, 2.0, -3.0]), min_size=3, max_size=3), min_size=3, max_size=3)
TEXTS = {
    "ij * ij -> ij": lambda a, b: a * b, "ij + ij -> ij": lambda a, b: a + b, "ij - ij -> ij": lambda a, b: a - b,
    "max(ij, ij) -> ij": torch.maximum, "relu(ij) + ij -> ij": lambda a, b: a.relu() + b,
    "exp(ij) * ij -> ij": lambda a, b: a.exp() * b, "ij + 2 * ij -> i": lambda a, b: (a + 2 * b).sum(1),
    "max: ij + ij -> i": lambda a, b: (a + b).amax(1), "min: ij * ij -> i": lambda a, b: (a * b).amin(1),
    "mean: ij - ij -> i": lambda a, b: (a - b).mean(1),
}  # fmt: skip


@given(st.sampled_from(list(TEXTS)), MATRIX, MATRIX)
def test_two_patterns_together(text, a, b):
    s = parse(text, (2, 2))
    program = Program(s, s.tree, (csr("i", "j"), csr("i", "j")), Output("dense", s.output, s.output[-1]), ("i", "j"))
    got = ran(program, arrays_of(0, a) | arrays_of(1, b)).arrays["out"]
    want = TEXTS[text](torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64))
    torch.testing.assert_close(torch.tensor(got, dtype=torch.float64)[: want.numel()].view(want.shape), want)
