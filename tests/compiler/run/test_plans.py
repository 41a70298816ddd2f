"""Plans: run again on other values, whatever their strides; what they keep."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.run.runtime import available
from gossamer.ops.plans_of import plan_of

pytestmark = pytest.mark.skipif(not available(), reason="no C compiler")
A = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]])


def test_one_plan_for_any_values():
    a, x = gs.from_dense(A, gs.CSR()), torch.tensor([1.0, 10, 100, 1000])
    plan = plan_of("ij,j->i", (a, x), None)
    assert plan([a.values(), x])[0].tolist() == [201, 0, 4030]
    assert plan([2 * a.values(), x])[0].tolist() == [402, 0, 8060]
    spread = torch.zeros(4, 2)
    spread[:, 0] = a.values()
    assert plan([spread[:, 0], x])[0].tolist() == [201, 0, 4030]  # values that are not contiguous
    assert plan([a.values(), x])[1] is None


def test_a_result_with_the_pattern_of_an_operand():
    a = gs.from_dense(A, gs.CSR())
    values, structure = plan_of("ij,ij->ij", (a, torch.full((3, 4), 2.0)), None)([a.values(), torch.full((3, 4), 2.0)])
    assert values.tolist() == [2, 4, 6, 8] and structure is a.structure


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (1, 1)])
def test_small_sizes(shape):
    a, x = gs.from_dense(torch.ones(shape), gs.CSR()), torch.ones(shape[1])
    assert plan_of("ij,j->i", (a, x), None)([a.values(), x])[0].tolist() == [shape[1]] * shape[0]


def test_bytes_beside_those_of_the_operands():
    a = gs.from_dense(A, gs.CSR())
    assert plan_of("ij,j->i", (a, torch.ones(4)), None).nbytes() == 0
    coo = gs.from_dense(A, gs.COO())
    assert plan_of("ij,j->i", (coo, torch.ones(4)), None).nbytes() > 0  # repacked
