"""Transposed convolutions with sparse weights, in one, two and three dimensions, against torch's dense ones."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import gossamer as gs
from gossamer.formats import PackedCSR, PackedNM
from tests.formats_under_test import ALL
from tests.ops.against_dense import check, check_refused, sample

FORMATS = [f for f in ALL if f != gs.Masked()]
FUNCTIONS = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


def test_by_hand():
    # one pixel of 10 and one of 100, a kernel of (1, 0, 3), two apart
    w = gs.from_dense(torch.tensor([[[1.0, 0.0, 3.0]]]), gs.CSR())
    x = torch.tensor([[[10.0, 100.0]]])
    assert F.conv_transpose1d(x, w, stride=2).tolist() == [[[10.0, 0.0, 130.0, 0.0, 300.0]]]


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_values_and_gradients(format, dims):
    x = torch.randn(2, 4, *(3, 4, 5)[:dims], dtype=torch.float64)
    bias = torch.randn(6, dtype=torch.float64)
    w = sample((4, 6, *(3, 2, 3)[:dims]), format)
    check(lambda x, w, b: FUNCTIONS[dims - 1](x, w, b, stride=2, padding=1), x, w, bias)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_any_sizes(data):
    dims = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(dims))
    kernel, places, stride, dilation = draw(1, 3), draw(1, 4), draw(1, 3), draw(1, 2)
    padding = tuple(data.draw(st.integers(0, d * (k - 1))) for d, k in zip(dilation, kernel, strict=True))
    more = tuple(data.draw(st.integers(0, s - 1)) for s in stride)
    groups, batched = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    torch.manual_seed(0)
    w = sample((2 * groups, 3, *kernel), data.draw(st.sampled_from(FORMATS)))
    x = torch.randn(*(2,) * batched, 2 * groups, *places, dtype=torch.float64)
    out = [
        (p - 1) * s - 2 * a + d * (k - 1) + m + 1
        for p, s, a, d, k, m in zip(places, stride, padding, dilation, kernel, more, strict=True)
    ]
    if min(out) < 1:
        return
    check(lambda x, w: FUNCTIONS[dims - 1](x, w, None, stride, padding, more, groups, dilation), x, w, gradients=False)


@pytest.mark.parametrize("format", [PackedCSR(), PackedCSR(order=(1, 0)), PackedNM(2, 4)], ids=repr)
def test_packed_formats(format):
    torch.manual_seed(0)
    dense = gs.sparsify(torch.randn(16, 8, 4, 4), "2:4").to_dense()
    w, x, bias = gs.from_dense(dense, format), torch.randn(2, 16, 5, 6), torch.randn(8)
    with gs.fallback("error"):
        found = F.conv_transpose2d(x, w, bias, 2, 1)
    torch.testing.assert_close(found, F.conv_transpose2d(x, dense, bias, 2, 1), rtol=0, atol=16 * 16 * 2**-20)


def test_what_is_refused_runs_dense():
    w = sample((4, 6, 3, 3), gs.CSR())
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    check_refused(lambda w: F.conv_transpose2d(x, w, None, 1, 1, 1, 1, 2), "output_padding", w)
    check_refused(lambda w: F.conv_transpose2d(x[:, :3], w), "numbers of channels", w)


def test_masked_weights_are_dense_ones():
    w = sample((4, 6, 3, 3), gs.Masked())
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    check(lambda x, w: F.conv_transpose2d(x, w, None, 1, 1, 1, 1, 2), x, w)


def test_a_module_and_training():
    torch.manual_seed(0)
    layer = torch.nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2)
    gs.sparsify_(layer, "75%", format=gs.CSR())
    dense = torch.nn.ConvTranspose2d(8, 4, 3, stride=2, groups=2)
    dense.load_state_dict({"weight": layer.weight.detach().to_dense(), "bias": layer.bias.detach()})
    x = torch.randn(2, 8, 4, 4)
    with gs.fallback("error"):
        layer(x).pow(2).sum().backward()
    dense(x).pow(2).sum().backward()
    wanted = dense.weight.grad * layer.weight.mask()
    torch.testing.assert_close(layer.weight.grad.to_dense(), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert gs.explain(F.conv_transpose2d, x, layer.weight, None, 2, 0, 0, 2).how == "native"
