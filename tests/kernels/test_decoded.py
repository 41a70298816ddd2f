"""Products whose gradients go by a dense copy."""

import torch

import gossamer as gs
from gossamer.formats import PackedTiles
from gossamer.kernels.decoded import DecodedProduct


class Doubled(DecodedProduct):
    """Its product is twice the right one, so that it shows where it is used."""

    def multiply(self, x, values, bias, activation):
        return 2 * x @ self.dense(values, *self.structure.places()).t()


def test_back_and_sample_are_products_with_the_dense_matrix():
    dense = gs.sparsify(torch.randn(9, 14), "60%", format=gs.Dense())
    weight = gs.from_dense(dense, PackedTiles())
    product = Doubled(weight.structure, False)
    x, grad = torch.randn(2, 3, 14), torch.randn(2, 3, 9)
    torch.testing.assert_close(product.forward(x, weight.values(), None), 2 * x @ dense.t())
    torch.testing.assert_close(product.forward(x[0, 0], weight.values(), None), 2 * x[0, 0] @ dense.t())
    torch.testing.assert_close(product.back(grad, weight.values()), grad @ dense)
    sampled = gs.SparseTensor.from_arrays(
        PackedTiles(), (9, 14), product.sample(grad, x), dict(weight.structure.arrays)
    )
    full = grad.flatten(0, 1).t() @ x.flatten(0, 1)
    torch.testing.assert_close(sampled.to_dense(), torch.where(dense != 0, full, 0))
    feature_major = product.forward(x[0], weight.values(), None, feature_major=True)
    assert feature_major.stride() == (1, 3)


def test_a_trace_has_gradients_and_without_them_the_product():
    dense = gs.sparsify(torch.randn(9, 14), "60%", format=gs.Dense())
    weight = gs.from_dense(dense, PackedTiles())
    product, x = Doubled(weight.structure, False), torch.randn(3, 14)
    values = weight.values().clone().requires_grad_()
    out = product.traced(x, values, None)
    torch.testing.assert_close(out, x @ dense.t())
    out.sum().backward()
    torch.testing.assert_close(values.grad, x.sum(0).expand(9, 14)[dense != 0][_order(weight, dense)])
    with torch.no_grad():
        torch.testing.assert_close(product.traced(x, values, None), 2 * x @ dense.t())


def _order(weight, dense):
    """Where each value is among the entries by rows."""
    numbers = torch.zeros_like(dense)
    numbers[dense != 0] = torch.arange(float(weight.nnz))
    return (
        gs.SparseTensor.from_arrays(
            weight.format, dense.shape, numbers.reshape(-1)[weight.structure.places()[0]], dict(weight.structure.arrays)
        )
        .values()
        .long()
    )
