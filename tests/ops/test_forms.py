"""The form of a result, with a kernel and without."""

import pytest
import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.ops.forms import converted, is_traced, on_dense

A = gs.from_dense(torch.tensor([[0.0, 3.0], [4.0, 0.0]]), gs.CSR())
X = torch.ones(2, 2)


def test_without_a_kernel_the_form_is_the_same():
    product = parse("ij,ij->ij", (2, 2))
    assert on_dense(product, [A, X], None, torch.float32).structure is A.structure
    assert on_dense(product, [A, X], gs.COO(), torch.float32).format == gs.COO()
    assert isinstance(on_dense(parse("ij,jk->ik", (2, 2)), [A, X], None, torch.float32), torch.Tensor)


def test_conversions():
    assert torch.equal(converted(A, None), A.to_dense()) and converted(X, gs.CSR()).nnz == 4
    assert converted(A, gs.CSC()).format == gs.CSC()


def test_ordinary_tensors_are_no_trace():
    assert not is_traced([A, X])


def test_dense_products_broadcast_as_in_einsum():
    product = parse("ij,jk->ik", (2, 2))
    for x, y in ((torch.randn(3, 4), torch.randn(4, 2)), (torch.randn(3, 1), torch.randn(4, 2))):
        want = x.expand(3, 4) @ y
        assert torch.allclose(on_dense(product, [x, y], None, torch.float32), want, atol=1e-6)


@pytest.mark.parametrize("out", [None, gs.CSR(), gs.COO()])
@pytest.mark.parametrize(
    "expression", ["ij,jk->ik", "ij,jk->ki", "ij,jk + ik -> ik", "sin(ij),jk / (2 + square(ik)) -> ik"]
)
def test_without_a_kernel_entries_that_are_zero_keep_their_gradients(expression, out):
    torch.manual_seed(0)
    given = [torch.randn(5, 4), torch.randn(4, 6), torch.randn(5, 6)][: expression.split("->")[0].count("k") + 1]
    given = [x.double() * (torch.rand(x.shape) < 0.5) for x in given]
    tensors = [gs.from_dense(x, gs.CSR()).detach() for x in given]
    tensors[0]._values.zero_()  # the result is 0 everywhere, and moves with this operand
    tensors = [t.requires_grad_() for t in tensors]
    dense = [t.detach().to_dense().requires_grad_() for t in tensors]
    statement = parse(expression, [2] * len(given))
    got, want = on_dense(statement, tensors, out, torch.float64), interpret(statement, dense)
    weight = torch.randn_like(want)
    (_dense(got) * weight).sum().backward()
    (want * weight).sum().backward()
    for t, d in zip(tensors, dense, strict=True):
        torch.testing.assert_close(_dense(t.grad), d.grad * t.detach().mask())


def _dense(t):
    return t.to_dense() if isinstance(t, gs.SparseTensor) else t
