"""Sums inside of an expression: where they stand, what they sum, and their gradients."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.statement import write
from gossamer.compiler.language.steps import steps
from gossamer.compiler.language.sums import cut, innermost, kept, simplified

torch.manual_seed(0)
D = torch.randn(6, 7, dtype=torch.float64) * (torch.rand(6, 7) < 0.4)
A = gs.from_dense(D, gs.CSR())
X, B, W = (torch.randn(shape, dtype=torch.float64) for shape in ((7, 5), (5,), (5, 3)))

#: An expression, its operands, and what it means to torch.
CASES = {
    "relu(nm,mk + k) -> nk": ((A, X, B), lambda d, x, b: (d @ x + b).relu()),
    "relu(nm,mk + k), ko -> no": ((A, X, B, W), lambda d, x, b, w: (d @ x + b).relu() @ w),
    "tanh(relu(nm,mk + k), ko) -> no": ((A, X, B, W), lambda d, x, b, w: ((d @ x + b).relu() @ w).tanh()),
    "exp(sum(ij)) -> i": ((A,), lambda d: d.sum(1).exp()),
    "exp(ij) -> i": ((A,), lambda d: d.exp().sum(1)),
    "square(sum(ij)) ->": ((A,), lambda d: d.sum().square()),
    "square(ij) ->": ((A,), lambda d: d.square().sum()),
    "ij / sum(kl * kl) -> ij": ((A, A, A), lambda d, e, f: d / (e * f).sum((0, 1))),
    "max(sum(nm * mk), k) -> nk": ((A, X, B), lambda d, x, b: torch.maximum(d @ x, b.expand(6, 5))),
}


def test_what_a_sum_keeps():
    s = parse("relu(nm,mk), ko -> no", (2, 2, 2))
    node = innermost(s.tree)
    assert kept(s, node) == ("n", "k") and str(node) == "sum(A * B)"
    assert str(s) == "D[n, o] = sum over k of relu(sum(A[n, m] * B[m, k])) * C[k, o]"


def test_a_comma_contracts_and_a_star_does_not():
    a, b = torch.randn(3, 4), torch.randn(4, 2)
    assert torch.allclose(interpret(parse("relu(ij,jk) -> ik", (2, 2)), [a, b]), (a @ b).relu())
    inside = (a[:, :, None] * b).relu().sum(1)
    assert torch.allclose(interpret(parse("relu(ij * jk) -> ik", (2, 2)), [a, b]), inside)


def test_a_sum_of_nothing_is_left_out():
    s = parse("relu(ij,ij) -> ij", (2, 2))
    assert innermost(s.tree) is None and cut(s) is None and simplified(s) == s


def test_steps_take_sums_out_first():
    path = steps(parse("relu(nm,mk + k), ko -> no", (2, 2, 1, 2)), [True, False, False, False])
    assert str(path[-1].statement) == "C[n, o] = sum over k of relu(B[n, k]) * A[k, o]"


@pytest.mark.parametrize("expression", CASES)
def test_values_and_gradients(expression):
    tensors, meaning = CASES[expression]
    given = [t.detach().requires_grad_() for t in tensors]
    dense = [(t.to_dense() if isinstance(t, gs.SparseTensor) else t).detach().requires_grad_() for t in tensors]
    got, want = gs.einsum(expression, *given), meaning(*dense)
    got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
    assert torch.allclose(got, want)
    assert torch.allclose(interpret(parse(expression, [t.dim() for t in dense]), dense), want)
    (got * got).sum().backward()
    (want * want).sum().backward()
    for t, d in zip(given, dense, strict=True):
        mine = t.grad.to_dense() if isinstance(t.grad, gs.SparseTensor) else t.grad
        assert torch.allclose(mine, d.grad * t.detach().mask() if isinstance(t, gs.SparseTensor) else d.grad)


@pytest.mark.parametrize("expression", CASES)
def test_expressions_are_written_as_they_are_read(expression):
    s = parse(expression, [t.dim() for t in CASES[expression][0]])
    again = parse(write(s), [len(g) for g in s.inputs])
    assert write(again) == write(s)


def test_in_a_trace():
    f = torch.compile(lambda x, b: gs.einsum("relu(nm,mk + k) -> nk", A, x, b), backend="aot_eager", fullgraph=True)
    x, b = X.clone().requires_grad_(), B.clone().requires_grad_()
    f(x, b).sum().backward()
    assert torch.allclose(f(X, B), (D @ X + B).relu())
    assert torch.allclose(b.grad, (D @ X + B > 0).double().sum(0))
