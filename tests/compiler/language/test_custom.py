"""Functions of one's own: computed, differentiated and refused."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.functions import NOT_ZERO_AT_ZERO

torch.manual_seed(0)
D = 3 * torch.randn(6, 7, dtype=torch.float64) * (torch.rand(6, 7) < 0.5)
A = gs.from_dense(D, gs.CSR())

gs.function("test_cap", "2 * tanh(x / 2)")
gs.function("test_gauss", "exp(-(x * x))")
gs.function("test_blend", "where(x > y, x - y, 0.5 * y)")
gs.function("test_step", "x > 0", slope="1 / square(1 + abs(x))")


def test_values_pattern_and_gradient():
    a, d = A.detach().requires_grad_(), D.clone().requires_grad_()
    got, want = gs.einsum("test_cap(ij) -> ij", a), 2 * (d / 2).tanh()
    assert got.structure is A.structure and torch.allclose(got.to_dense(), want)
    got.to_dense().square().sum().backward()
    want.square().sum().backward()
    assert torch.allclose(a.grad.to_dense(), d.grad * A.mask())


def test_one_that_is_not_zero_at_zero_gives_a_dense_result():
    assert "test_gauss" in NOT_ZERO_AT_ZERO and "test_cap" not in NOT_ZERO_AT_ZERO
    assert torch.allclose(gs.einsum("test_gauss(ij) -> i", A), (-D * D).exp().sum(1))


def test_two_arguments():
    b = torch.randn(7, dtype=torch.float64)
    got = gs.einsum("test_blend(ij, j) -> ij", A, b)
    assert torch.allclose(got, torch.where(b < D, D - b, 0.5 * b))
    assert torch.allclose(got, interpret(parse("test_blend(ij, j) -> ij", (2, 1)), [D, b]))


def test_a_slope_of_its_own():
    a = A.detach().requires_grad_()
    gs.einsum("test_step(ij) -> i", a).sum().backward()
    assert torch.allclose(a.grad.values(), 1 / (1 + A.values().abs()) ** 2)


def test_of_a_sum_and_in_a_trace():
    x = torch.randn(7, 3, dtype=torch.float64)
    f = torch.compile(lambda x: gs.einsum("test_cap(ij,jk) -> ik", A, x), backend="aot_eager", fullgraph=True)
    assert torch.allclose(f(x), 2 * (D @ x / 2).tanh())


@pytest.mark.parametrize(
    ("args", "error", "why"),
    [
        (("relu", "2 * x"), ValueError, "already"),
        (("test_cap", "3 * tanh(x / 3)"), ValueError, "another name"),
        (("two words", "x"), ValueError, "word"),
        (("test_none", "2"), ValueError, "arguments"),
        (("test_more", "x", "y"), ValueError, "slope"),
        (("test_f", torch.tanh), TypeError, "expressions"),
        (("test_g", "cosh(x)"), ValueError, "unknown function"),
    ],
)
def test_refused(args, error, why):
    with pytest.raises(error, match=why):
        gs.function(*args)


def test_the_same_definition_may_be_repeated():
    gs.function("test_cap", "2 * tanh(x / 2)")
