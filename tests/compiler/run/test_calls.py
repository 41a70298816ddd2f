"""Statements on prepared operands: dense views of them, plans that are kept, gradients next to torch."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler.language.custom import function
from gossamer.compiler.language.notation import parse
from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.calls import Prepared, plan_for, run

A = torch.tensor([[1.0, 0, 2, 0], [0, 0, 0, 0], [0, 3, 0, 4]], dtype=torch.float64)
SIZES = {"i": 3, "j": 4}


def sparse(vars=("i", "j")):
    a = gs.from_dense(A, gs.CSR())
    return Prepared(a.values(), a.structure, vars)


def test_operands():
    a, x = sparse(), Prepared(torch.ones(4), None, ("j",))
    assert torch.equal(a.dense(), A) and x.dense() is x.values
    assert a.arg().shape == (3, 4) and not a.arg().stride and x.arg().stride == (1,)


def test_a_product_and_its_gradients_by_hand():
    a, x = sparse(), Prepared(torch.tensor([1.0, 2, 3, 4], dtype=torch.float64), None, ("j",))
    for p in (a, x):
        p.values.requires_grad_()
    values, structure = run(parse("ij,j->i", (2, 1)), [a, x], SIZES, "dense")
    assert values.tolist() == [7, 0, 22] and structure is None
    values.backward(torch.tensor([1.0, 10, 100], dtype=torch.float64))
    assert a.values.grad.tolist() == [1, 3, 200, 400] and x.values.grad.tolist() == [1, 300, 2, 400]


def test_a_result_with_the_entries_of_an_operand():
    a = sparse()
    values, structure = run(parse("2 * ij -> ij", (2,)), [a], SIZES, 0)
    assert values.tolist() == [2, 4, 6, 8] and structure is a.structure


def test_a_plan_is_kept_while_its_structure_lives():
    PLANS.clear()
    a, s = sparse(), parse("ij->i", (2,))
    plan = plan_for(s, [a.arg()], SIZES, torch.float64, "dense", torch.device("cpu"))
    assert plan_for(s, [a.arg()], SIZES, torch.float64, "dense", torch.device("cpu")) is plan
    assert plan_for(s, [a.arg()], SIZES, torch.float32, "dense", torch.device("cpu")) is not plan


function("both_of", "x + y")


@pytest.mark.parametrize(
    "text, want",
    [
        ("mean: both_of(ij, j) -> ", lambda a, x: (a + x).mean()),
        ("mean: both_of(ij, j) -> i", lambda a, x: (a + x).mean(1)),
        ("mean: ij * j -> j", lambda a, x: (a * x).mean(0)),
        ("both_of(ij, j) -> ", lambda a, x: (a + x).sum()),
        ("relu(ij - j) -> i", lambda a, x: (a - x).relu().sum(1)),
    ],
)
def test_gradients_where_an_operand_broadcasts(text, want):
    """An operand without a summed index counts once for each of its coordinates, in means too."""
    a, x = gs.from_dense(A, gs.CSR()).requires_grad_(), torch.arange(1.0, 5, dtype=torch.float64).requires_grad_()
    got = torch.as_tensor(gs.einsum(text, a, x))
    found = torch.autograd.grad(got.sum(), [x, a.values()], allow_unused=True)[0]
    (true,) = torch.autograd.grad(want(A, x).sum(), [x])
    torch.testing.assert_close(got, want(A, x))
    torch.testing.assert_close(found, true)
