"""Products with a masked matrix: torch's own, on what Masked stores."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.dense.product import DenseProduct

W = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


def kernel(transpose=False, shape=None):
    t = gs.from_dense(W if shape is None else W.view(shape), gs.Masked())
    return DenseProduct(t.structure, transpose), t._values


def test_by_hand():
    product, values = kernel()
    x, grad = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0]])
    assert (product.rows, product.cols) == (2, 3)
    assert product.forward(x, values, torch.tensor([1.0, -20.0])).tolist() == [[5.0, -5.0]]
    assert product.forward(x, values, torch.tensor([1.0, -20.0]), 1).tolist() == [[5.0, 0.0]]
    assert product.back(grad, values).tolist() == [[6.0, 2.0, 8.0]]
    assert product.sample(grad, x).tolist() == [[0.0, 2.0, 0.0], [2.0, 0.0, 6.0]]


def test_the_transpose():
    product, values = kernel(transpose=True)
    assert (product.rows, product.cols) == (3, 2)
    assert product.forward(torch.tensor([[1.0, 2.0]]), values, None).tolist() == [[6.0, 2.0, 8.0]]
    assert product.back(torch.tensor([[1.0, 2.0, 3.0]]), values).tolist() == [[4.0, 15.0]]
    sample = product.sample(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 2.0]]))
    assert sample.tolist() == [[0.0, 2.0, 0.0], [2.0, 0.0, 6.0]]


def test_a_weight_of_more_dimensions_is_a_matrix_of_its_first():
    product, values = kernel(shape=(2, 3, 1))
    assert product.forward(torch.ones(2, 4, 3), values, None).tolist() == [[[2.0, 7.0]] * 4] * 2
    assert product.sample(torch.ones(5, 2), torch.ones(5, 3)).tolist() == [[[0.0], [5.0], [0.0]], [[5.0], [0.0], [5.0]]]


@pytest.mark.parametrize("grad", [True, False])
def test_in_a_trace_values_outside_of_the_mask_have_no_gradient(grad):
    product, values = kernel()
    values = values.clone().requires_grad_(grad)
    out = product.traced(torch.tensor([[1.0, 2.0, 3.0]]), values, None)
    assert out.tolist() == [[4.0, 15.0]]
    if grad:
        out.sum().backward()
        assert values.grad.tolist() == [[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]]
    assert product.clean(torch.ones(2, 3)).tolist() == [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
