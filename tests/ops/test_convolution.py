"""Convolutions with a sparse weight: sizes of windows, patches, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.ops.convolution import convolve, takes_conv2d

FORMATS = [gs.CSR(), gs.COO(), gs.Masked(), gs.BSR((2, 2)), gs.formats.PackedCSR()]


def weight(shape=(3, 2, 3, 2), format=None, dtype=torch.float64):
    whole = torch.randint(-4, 5, shape).to(dtype) * (torch.rand(shape) < 0.5)
    return whole, gs.from_dense(whole, format or gs.CSR())


def test_by_hand():
    w = gs.from_dense(torch.tensor([[[[0.0, 2.0], [3.0, 0.0]]]]), gs.CSR())
    x = torch.tensor([[[[1.0, 10.0, 100.0], [2.0, 20.0, 200.0]]]])
    assert F.conv2d(x, w).tolist() == [[[[26.0, 260.0]]]]  # 2 * 10 + 3 * 2, 2 * 100 + 3 * 20
    assert F.conv2d(x, w, torch.tensor([0.5])).tolist() == [[[[26.5, 260.5]]]]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")  # by torch, of its own copy
@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize(
    "options",
    [
        {}, {"stride": 2}, {"stride": (1, 2)}, {"padding": 1}, {"padding": (2, 1)}, {"dilation": (2, 1)},
        {"padding": "same"}, {"padding": "valid"}, {"padding": "same", "dilation": 2},
        {"stride": (2,), "padding": (1,)},
    ],
    ids=str,
)  # fmt: skip
def test_torch_s_own_sizes(format, options):
    whole, w = weight(format=format, dtype=torch.float32)  # whole numbers: exact in any order
    x, bias = torch.randint(-4, 5, (2, 2, 7, 6)).float(), torch.tensor([1.0, -2.0, 0.0])
    want = F.conv2d(x, whole, bias, **options)
    assert torch.equal(F.conv2d(x, w, bias, **options), want)
    assert torch.equal(F.conv2d(x[0], w, None, **options), F.conv2d(x[0], whole, None, **options))
    if options.get("padding") != "same":
        assert torch.equal(convolve(x, w.values(), w.structure, bias, **options), want)


def test_one_by_one():
    whole, w = weight((4, 3, 1, 1))
    x = torch.randint(-4, 5, (2, 3, 5, 4)).double()
    assert torch.equal(F.conv2d(x, w), F.conv2d(x, whole))
    assert torch.equal(F.conv2d(x, w, stride=2), F.conv2d(x, whole, stride=2))


def test_gradients_go_to_input_stored_values_and_bias():
    whole, w = weight()
    x, bias = torch.randn(2, 2, 5, 5, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    sparse = (x.clone().requires_grad_(), w.clone().requires_grad_(), bias.clone().requires_grad_())
    dense = (x.clone().requires_grad_(), whole.clone().requires_grad_(), bias.clone().requires_grad_())
    for operands in (sparse, dense):
        (F.conv2d(*operands, padding=1) ** 2).sum().backward()
    torch.testing.assert_close(sparse[0].grad, dense[0].grad)
    torch.testing.assert_close(sparse[2].grad, dense[2].grad)
    torch.testing.assert_close(sparse[1].grad.to_dense(), dense[1].grad * w.mask())


@pytest.mark.parametrize(
    ("input", "shape", "options", "reason"),
    [
        ((1, 2, 8, 8), (4, 2, 3, 3), {}, None),
        ((2, 8, 8), (4, 2, 3, 3), {}, None),
        ((1, 2, 3, 3), (4, 2, 3, 3), {}, None),
        ((1, 4, 8, 8), (4, 2, 3, 3), {"groups": 2}, None),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"groups": 2}, "input and weight have different numbers of channels"),
        ((2, 8), (4, 2, 3, 3), {}, "input or weight has another number of dimensions"),
        ((1, 2, 8, 8), (4, 2, 3), {}, "input or weight has another number of dimensions"),
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, "input and weight have different numbers of channels"),
        ((1, 2, 2, 8), (4, 2, 3, 3), {}, "the kernel is larger than the input"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"dilation": 4}, "the kernel is larger than the input"),
        ((1, 2, 8, 8), (4, 2, 3, 3), {"padding": "same", "stride": 2}, "padding='same' needs a stride of 1"),
    ],
)
def test_which_it_takes(input, shape, options, reason):
    assert takes_conv2d(torch.zeros(input), shape, **options) == reason


def test_other_types_are_torchs_error_and_explain_says_why():
    _, w = weight(dtype=torch.float32)
    x = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    assert "different types" in str(gs.explain(F.conv2d, x, w))
    with pytest.raises(RuntimeError), gs.fallback("silent"):
        F.conv2d(x, w)
