"""The product that every format has: compressed rows, with padding taken out."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.csr.product import CsrProduct
from tests.formats_under_test import ALL

W = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
X = torch.tensor([[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])


def kernel(format=None, transpose=False):
    t = gs.from_dense(W, format or gs.CSR())
    return CsrProduct(t.structure, transpose), t._values


@pytest.mark.parametrize("format", ALL, ids=repr)
def test_forward_back_and_sample_by_hand(format):
    product, values = kernel(format)
    assert (product.rows, product.cols) == (2, 3)
    assert product.forward(X, values, None).tolist() == [[4.0, 15.0], [40.0, 150.0]]
    assert product.forward(X, values, torch.tensor([1.0, -1.0])).tolist() == [[5.0, 14.0], [41.0, 149.0]]
    grad = torch.tensor([[1.0, 2.0]])
    stored = gs.from_dense(W, format).mask()  # a block stores zeros too
    assert product.back(grad, values).tolist() == [[6.0, 2.0, 8.0]]
    sample = gs.SparseTensor(product.sample(grad, X[:1]), gs.from_dense(W, format).structure).to_dense()
    assert sample.tolist() == torch.where(stored, torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]]), 0).tolist()


@pytest.mark.parametrize("format", [gs.CSR(), gs.CSC(), gs.ELL()], ids=repr)
def test_the_transpose(format):
    product, values = kernel(format, transpose=True)
    assert (product.rows, product.cols) == (3, 2)
    assert product.forward(torch.tensor([[1.0, 2.0]]), values, None).tolist() == [[6.0, 2.0, 8.0]]
    assert product.back(X[:1], values).tolist() == [[4.0, 15.0]]
    sampled = gs.SparseTensor(product.sample(X[:1], torch.tensor([[1.0, 2.0]])), gs.from_dense(W, format).structure)
    assert sampled.to_dense().tolist() == [[0.0, 2.0, 0.0], [2.0, 0.0, 6.0]]


def test_inputs_of_any_dimensions_and_layouts():
    product, values = kernel()
    assert product.forward(X[0], values, None).tolist() == [4.0, 15.0]
    assert product.forward(X.view(1, 2, 3), values, None).tolist() == [[[4.0, 15.0], [40.0, 150.0]]]
    assert product.forward(X.t().contiguous().t(), values, None).tolist() == [[4.0, 15.0], [40.0, 150.0]]
    assert product.forward(torch.ones(0, 3), values, None).shape == (0, 2)
    assert product.back(torch.ones(1, 2, 2), values).shape == (1, 2, 3)


def test_feature_major_is_the_same_numbers_in_another_order():
    product, values = kernel()
    out = product.forward(X, values, None, feature_major=True)
    assert out.tolist() == [[4.0, 15.0], [40.0, 150.0]] and out.t().is_contiguous()


def test_activations():
    product, values = kernel()
    assert product.forward(-X[:1], values, None, 1).tolist() == [[0.0, 0.0]]  # relu
    assert product.forward(X[:1], values, torch.tensor([-5.0, 0.0]), 1).tolist() == [[0.0, 15.0]]


def test_padding_neither_counts_nor_has_a_gradient():
    product, values = kernel(gs.ELL())
    dirty = values.clone()
    dirty[1] = float("nan")  # the second place of row 0
    assert product.forward(X[:1], dirty, None).tolist() == [[4.0, 15.0]]
    assert product.clean(dirty).tolist() == [2.0, 0.0, 3.0, 4.0]
    assert product.sample(torch.ones(1, 2), X[:1]).tolist() == [2.0, 0.0, 1.0, 3.0]


@pytest.mark.parametrize("tokens_first", [True, False])
@pytest.mark.parametrize("transposed", [True, False])
def test_gradients_of_the_operators(transposed, tokens_first):
    t = gs.from_dense(W.double(), gs.CSR())
    pos, crd = t.structure.arrays["pos1"], t.structure.arrays["crd1"]
    values = t._values.clone().requires_grad_()
    x = torch.randn(2 if transposed else 3, 2, dtype=torch.float64, requires_grad=True)

    def spmm(values, x):
        return torch.ops.gossamer.spmm(pos, crd, values, 2, 3, transposed, x, tokens_first)

    assert torch.autograd.gradcheck(spmm, (values, x))
    left, right = (torch.randn(n, 2, dtype=torch.float64, requires_grad=True) for n in (2, 3))
    assert torch.autograd.gradcheck(lambda a, b: torch.ops.gossamer.sddmm(pos, crd, 2, 3, a, b), (left, right))


def test_of_arrays_as_the_operators_get_them():
    t = gs.from_dense(W, gs.CSR())
    product = CsrProduct.of(t.structure.arrays["pos1"], t.structure.arrays["crd1"], 2, 3, True)
    assert (product.rows, product.cols) == (3, 2) and product.clean(t._values) is t._values
    assert product.forward(torch.tensor([[1.0, 2.0]]), t._values, None).tolist() == [[6.0, 2.0, 8.0]]
