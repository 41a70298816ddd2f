"""Functions of expressions: values, slopes, and what they leave of a pattern."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.algebra import needed
from gossamer.compiler.language.functions import FUNCTIONS, NOT_ZERO_AT_ZERO, apply

torch.manual_seed(1)
D = torch.randn(6, 7, dtype=torch.float64) * (torch.rand(6, 7) < 0.4)
A = gs.from_dense(D, gs.CSR())
ROW = torch.rand(6, dtype=torch.float64) + 0.5

CASES = {
    "where(ij > 0.5, ij, 0) -> ij": ((A, A), lambda d, e: torch.where(d > 0.5, e, 0)),
    "where(ij <= 0, ij, 2 * ij) -> ij": ((A, A, A), lambda d, e, f: torch.where(d <= 0, e, 2 * f)),
    "ij / i -> ij": ((A, ROW), lambda d, r: d / r[:, None]),
    "i / (ij + 9) -> ij": ((ROW, A), lambda r, d: r[:, None] / (d + 9)),
    "(ij >= 0) -> i": ((A,), lambda d: (d >= 0).double().sum(1)),
    "(ij == 0) * i -> ij": ((A, ROW), lambda d, r: (d == 0) * r[:, None]),
    "(ij != 0) -> j": ((A,), lambda d: (d != 0).double().sum(0)),
    "(ij < i) * ij -> ij": ((A, ROW, A), lambda d, r, e: (d < r[:, None]) * e),
    "exp(-ij) * i -> ij": ((A, ROW), lambda d, r: (-d).exp() * r[:, None]),
}


@pytest.mark.parametrize("expression", CASES)
def test_values_and_gradients(expression):
    tensors, meaning = CASES[expression]
    given = [t.detach().requires_grad_() for t in tensors]
    dense = [(t.to_dense() if isinstance(t, gs.SparseTensor) else t).detach().requires_grad_() for t in tensors]
    got, want = gs.einsum(expression, *given), meaning(*dense)
    got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    assert torch.allclose(got, want)
    assert torch.allclose(interpret(parse(expression, [t.dim() for t in dense]), dense).double(), want)
    if not want.requires_grad:
        return
    (got * got).sum().backward()
    (want * want).sum().backward()
    for t, d in zip(given, dense, strict=True):
        mine = (
            torch.zeros_like(d) if t.grad is None else t.grad.to_dense() if isinstance(t, gs.SparseTensor) else t.grad
        )
        right = torch.zeros_like(d) if d.grad is None else d.grad
        assert torch.allclose(mine, right * t.detach().mask() if isinstance(t, gs.SparseTensor) else right)


def test_a_condition_that_fails_at_zero_keeps_the_pattern():
    assert gs.einsum("where(ij > 1, ij, 0) -> ij", A, A).structure is A.structure
    assert needed(parse("ij > 1 -> ij", (2,)).tree, frozenset({0})) == {frozenset({0})}
    assert frozenset() in needed(parse("ij > -1 -> ij", (2,)).tree, frozenset({0}))
    assert isinstance(gs.einsum("ij >= 0 -> ij", A), torch.Tensor)


def test_nothing_divided_by_nothing_is_nothing():
    zero = torch.zeros(6, dtype=torch.float64)
    assert torch.equal(gs.einsum("ij / i -> ij", A, zero).values().isinf(), A.values() != 0)
    assert apply("/", [0.0, 0.0]) == 0 and apply("/", [1.0, 4.0]) == 0.25


def test_integers_are_divided_as_by_torch():
    a = gs.from_dense(torch.tensor([[4, 0], [0, 3]]), gs.CSR())
    got = gs.einsum("ij / i -> ij", a, torch.tensor([8, 2])).to_dense()
    assert got.dtype == torch.float32 and got.tolist() == [[0.5, 0], [0, 1.5]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_zero_at_zero_unless_they_say_so(name):
    function = FUNCTIONS[name]
    value = function.torch(*(torch.zeros(1) for _ in range(function.arity)))
    assert name in NOT_ZERO_AT_ZERO or bool(value == 0)
