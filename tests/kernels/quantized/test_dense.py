"""Dense layers in 8 bits: the operator that quantizes tokens, on a CPU and by its kernel in the emulator."""

import pytest
import torch

from gossamer.kernels.quantized import dense
from gossamer.kernels.quantized.dense import linear_dense8, quantize_tokens, quantize_tokens_cuda
from gossamer.kernels.vnm.eight import round8
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate


@pytest.mark.parametrize("integer", [False, True])
def test_operator(integer):
    x = torch.randn(3, 130)
    small, scale = torch.ops.gossamer.quantize_8bit(x, integer)
    assert small.shape == (3, 256) and bool((small[:, 130:].float() == 0).all())
    back = small[:, :130].float() * scale[:, None]
    step = scale[:, None] / 2 if integer else x.abs() / 16 + scale[:, None] * 2**-10
    assert bool(((back - x).abs() <= step * 1.001).all())
    torch.library.opcheck(torch.ops.gossamer.quantize_8bit.default, (x, integer))


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("integer", [False, True])
def test_its_kernel(integer, monkeypatch):
    emulate(monkeypatch, dense)
    monkeypatch.setattr(dense, "_calls", {})
    wide = torch.randn(5, 203).half()
    for x in (torch.randn(4, 256).bfloat16(), torch.randn(3, 70).half(), wide[:, 3:], torch.randn(64, 3).half().t()):
        small, scale = quantize_tokens_cuda(x, integer)
        expected, each = quantize_tokens(x, integer)
        assert torch.equal(small.view(torch.int8), expected.view(torch.int8)) and torch.equal(scale, each)
    assert quantize_tokens_cuda(x[:0], integer)[0].shape == (0, 128)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_linear(dtype):
    weight, x, bias = torch.randn(40, 130), torch.randn(7, 130), torch.randn(40)
    values, scale = round8(weight, dtype)
    out = linear_dense8(values, scale, x, bias)
    small, tokens = quantize_tokens(x, dtype is torch.int8)
    a, b = small[:, :130].double() * tokens.double()[:, None], values.double() * scale.double()[:, None]
    torch.testing.assert_close(out.double(), a @ b.t() + bias.double(), rtol=1e-5, atol=1e-5)
    assert linear_dense8(values, scale, x[:0].half(), None).dtype is torch.float16
