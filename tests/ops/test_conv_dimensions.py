"""Convolutions of one and three dimensions with a sparse weight, against torch's dense ones."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs

FORMATS = [gs.CSR(), gs.COO(), gs.ELL()]
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


@pytest.fixture(autouse=True)
def no_dense_copy():
    torch.manual_seed(0)
    with gs.fallback("error"):
        yield


def weight(*shape, format):
    dense = torch.randn(shape, dtype=torch.float64) * (torch.rand(shape) < 0.4)
    return dense, gs.from_dense(dense, format)


def test_by_hand():
    w = gs.from_dense(torch.tensor([[[0.0, 2.0, 1.0]]]), gs.CSR())
    assert F.conv1d(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), w).tolist() == [[[7, 10]]]
    cube = torch.zeros(1, 1, 2, 2, 2)
    cube[0, 0, 1, 0, 1] = 3
    x = torch.arange(8.0).view(1, 1, 2, 2, 2)
    assert F.conv3d(x, gs.from_dense(cube, gs.COO())).item() == 15  # 3 times x[1, 0, 1]


OPTIONS = [{}, {"stride": 2}, {"padding": 1}, {"dilation": 2}, {"padding": "same"}, {"stride": 2, "padding": 2}]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_lines(format, options):
    dense, w = weight(6, 3, 4, format=format)
    bias = torch.randn(6, dtype=torch.float64)
    for shape in ((2, 3, 11), (3, 9), (1, 3, 8)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(F.conv1d(x, w, bias, **options), F.conv1d(x, dense, bias, **options))


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("options", [*OPTIONS, {"stride": (1, 2, 3), "padding": (2, 0, 1)}], ids=str)
def test_volumes(format, options):
    dense, w = weight(5, 2, 2, 3, 2, format=format)
    bias = torch.randn(5, dtype=torch.float64)
    for shape in ((2, 2, 6, 7, 8), (2, 5, 6, 7)):
        x = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(F.conv3d(x, w, bias, **options), F.conv3d(x, dense, bias, **options))


@pytest.mark.parametrize("dims", [1, 3])
def test_gradients(dims):
    shape = (4, 3, *(2, 3, 2)[:dims])
    dense, w = weight(*shape, format=gs.CSR())
    x = torch.randn(2, 3, *(5, 6, 4)[:dims], dtype=torch.float64)
    conv = getattr(F, f"conv{dims}d")
    ours, theirs = (
        (x.clone().requires_grad_(), w.requires_grad_()),
        (x.clone().requires_grad_(), dense.requires_grad_()),
    )
    for a, b in (ours, theirs):
        conv(a, b, padding=1).square().sum().backward()
    torch.testing.assert_close(ours[0].grad, theirs[0].grad)
    torch.testing.assert_close(ours[1].grad.to_dense(), theirs[1].grad * (dense != 0))


@pytest.mark.parametrize(("layer", "shape"), [(nn.Conv1d(4, 8, 3), (2, 4, 9)), (nn.Conv3d(4, 8, 3), (2, 4, 5, 5, 5))])
def test_layers(layer, shape):
    x = torch.randn(shape)
    gs.sparsify_(layer, "75%")
    with gs.fallback("silent"):
        expected = layer(x)
    gs.sparsify_(layer, gs.KeepAll(), format=gs.CSR())
    torch.testing.assert_close(layer(x), expected, rtol=1e-4, atol=1e-5)


def test_what_is_left_to_torch():
    _, w = weight(4, 2, 3, format=gs.CSR())
    with gs.fallback("silent"):
        for bad in (torch.randn(1, 3, 8).double(), torch.randn(1, 2, 2).double()):
            with pytest.raises(RuntimeError):
                F.conv1d(bad, w)
