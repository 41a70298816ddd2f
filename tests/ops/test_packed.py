"""The product with packed rows of int8 values."""

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.ops.packed import linear_int8

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels here")

CODES = torch.zeros(4, 6)
CODES[0, 1], CODES[1, 0], CODES[3, 4] = 100, -3, 127
SCALE = torch.tensor([0.5, 2.0, 1.0, 0.25])
X = torch.tensor([[1.0, 2.0, 3.0, 4.0, 8.0, 6.0]])
OUT = [100.0, -6.0, 0.0, 254.0]  # 0.5 * 100 * 2, 2 * -3 * 1, 0, 0.25 * 127 * 8


def weight(format=None):
    t = gs.from_dense(CODES.to(torch.int8), format or gs.formats.PackedCSR())
    return t._values, t.structure


@pytest.mark.parametrize(
    "format", [gs.formats.PackedCSR(), gs.formats.PackedNear(), gs.formats.PackedNM(1, 2)], ids=repr
)
def test_by_hand(format):
    assert linear_int8(X, *weight(format), SCALE, None).tolist() == [OUT]
    bias = torch.tensor([1.0, 0.0, 2.0, -4.0])
    assert linear_int8(X, *weight(format), SCALE, bias).tolist() == [[101.0, -6.0, 2.0, 250.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_the_type_of_the_input_is_that_of_the_result(dtype):
    bias = torch.zeros(4, dtype=dtype)
    out = linear_int8(X.to(dtype), *weight(), SCALE.to(dtype), bias)
    assert out.dtype is dtype and out.tolist() == [OUT]


def test_inputs_of_other_dimensions_and_layouts():
    assert linear_int8(X[0], *weight(), SCALE, None).tolist() == OUT
    assert linear_int8(X.expand(2, 3, 6), *weight(), SCALE, None).tolist() == [[OUT] * 3] * 2
    assert linear_int8(X.repeat(2, 1).t().contiguous().t(), *weight(), SCALE, None).tolist() == [OUT] * 2
    assert linear_int8(torch.ones(0, 6), *weight(), SCALE, None).shape == (0, 4)


def test_gradients_of_input_and_bias():
    x, bias = X.clone().requires_grad_(), torch.zeros(4, requires_grad=True)
    linear_int8(x, *weight(), SCALE, bias).backward(torch.tensor([[1.0, 10.0, 100.0, 1.0]]))
    assert x.grad.tolist() == [[-60.0, 50.0, 0.0, 0.0, 31.75, 0.0]]
    assert bias.grad.tolist() == [1.0, 10.0, 100.0, 1.0]
