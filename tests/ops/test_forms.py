"""The form of a result, with a kernel and without."""

import torch

import gossamer as gs
from gossamer.compiler import parse
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
