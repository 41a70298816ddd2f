"""Embedding, convolution and normalisation with sparse tensors."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.core.tensor import SparseTensor
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, sample

formats = pytest.mark.parametrize("format", ALL, ids=repr)


@formats
def test_embedding_by_hand(format):
    table = gs.from_dense(torch.tensor([[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]]), format)
    assert F.embedding(torch.tensor([[1, 1], [0, 2]]), table).tolist() == [
        [[2.0, 0.0], [2.0, 0.0]],
        [[0.0, 1.0], [0.0, 0.0]],
    ]


@formats
@pytest.mark.parametrize(
    "index", [torch.tensor([3, 0, 3]), torch.zeros(2, 0, dtype=torch.long), torch.tensor(1)], ids=str
)
def test_embedding(format, index):
    check(lambda w: F.embedding(index, w), sample((5, 4), format))


@formats
def test_the_padding_row_gets_no_gradient(format):
    check(lambda w: F.embedding(torch.tensor([3, 0, 3]), w), sample((5, 4), format))
    w = sample((5, 4), format).requires_grad_()
    F.embedding(torch.tensor([3, 1, 3]), w, padding_idx=3).sum().backward()
    grad = w.grad.to_dense()
    assert grad[3].count_nonzero() == 0
    assert torch.equal(grad[1], w.mask()[1].double())


@formats
def test_an_index_out_of_range_is_an_error(format):
    with pytest.raises(IndexError, match="out of range"):
        F.embedding(torch.tensor([5]), sample((5, 4), format))


OPTIONS = {
    "plain": {},
    "stride": {"stride": 2},
    "padding": {"padding": (1, 2)},
    "dilation": {"dilation": 2},
    "same": {"padding": "same"},
    "valid": {"padding": "valid", "stride": (1, 2)},
}


@formats
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_conv2d(format, options):
    x, bias = torch.randn(2, 3, 7, 6, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    w = sample((4, 3, 3, 3), format)
    check(lambda x, w, b: F.conv2d(x, w, b, **options), x, w, bias, gradients=options in ({}, {"dilation": 2}))
    check(lambda x, w: F.conv2d(x, w, **options), x[0], w, gradients=False)


@formats
def test_conv2d_with_a_kernel_of_one_and_a_strided_input(format):
    x = torch.randn(5, 2, 4, 3, dtype=torch.float64).transpose(1, 3)
    check(F.conv2d, x, sample((4, 3, 1, 1), format))


@formats
@pytest.mark.parametrize("shape", [(5, 7), (1, 6), (3, 4, 5)], ids=str)
def test_layer_norm(format, shape):
    t, weight, bias = sample(shape, format), *torch.randn(2, shape[-1], dtype=torch.float64)
    check(lambda t: F.layer_norm(t, shape[-1:]), t)
    check(lambda t, w, b: F.layer_norm(t, shape[-1:], w, b), t, weight, bias)
    check(lambda t: F.layer_norm(t, shape[-2:]), t)


@formats
@pytest.mark.parametrize("shape", [(5, 7), (1, 6), (3, 4, 5)], ids=str)
def test_norms_that_stay_sparse(format, shape):
    t, weight = sample(shape, format), torch.randn(shape[-1], dtype=torch.float64)
    for f in (
        lambda t: F.normalize(t, dim=-1),
        lambda t: F.normalize(t, p=3, dim=0),
        lambda t: F.rms_norm(t, shape[-1:]),
    ):
        assert isinstance(check(f, t), SparseTensor)
    check(lambda t, w: F.rms_norm(t, shape[-1:], w, 1e-3), t, weight)


def test_a_row_without_entries_is_normalised_to_zero():
    t = gs.from_dense(torch.tensor([[0.0, 0.0], [1.0, 3.0]]), gs.CSR())
    torch.testing.assert_close(F.layer_norm(t, (2,)), torch.tensor([[0.0, 0.0], [-1.0, 1.0]]), atol=1e-4, rtol=0)
