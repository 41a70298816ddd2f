"""gs.linear: the activation in the kernel or after it, one answer."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedNM, PackedVNM

FORMATS = [gs.Dense(), gs.Masked(), gs.CSR(), PackedCSR(), Condensed(), PackedNM(2, 4), PackedVNM("all", 2, 4)]
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu, None: lambda x: x}


@pytest.mark.parametrize("format", FORMATS, ids=repr)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_format(format, activation, dtype):
    dense = gs.sparsify(torch.randn(48, 64).to(dtype), "2:4", format=gs.Dense())
    weight = dense if isinstance(format, gs.Dense) else gs.from_dense(dense, format)
    x, bias = torch.randn(2, 5, 64).to(dtype), torch.randn(48).to(dtype)
    expected = ACTIVATIONS[activation](F.linear(x.double(), dense.double(), bias.double())).to(dtype)
    bound = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    torch.testing.assert_close(gs.linear(x, weight, bias, activation), expected, **bound)
    with torch.no_grad():
        torch.testing.assert_close(gs.linear(x, weight, bias, activation), expected, **bound)


@pytest.mark.parametrize("format", FORMATS[1:], ids=repr)
def test_gradients_go_through_the_activation(format):
    dense = gs.sparsify(torch.randn(48, 64), "2:4", format=gs.Dense()).requires_grad_()
    weight = gs.from_dense(dense.detach(), format).requires_grad_()
    x = torch.randn(5, 64, requires_grad=True)
    gx, gw = torch.autograd.grad(gs.linear(x, weight, None, "gelu").sum(), (x, weight))
    dx, dw = torch.autograd.grad(F.gelu(F.linear(x, dense)).sum(), (x, dense))
    torch.testing.assert_close(gx, dx, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(gw.to_dense(), torch.where(weight.mask(), dw, 0), rtol=1e-4, atol=1e-5)


def test_autocast_chooses_the_type():
    weight = gs.sparsify(torch.randn(48, 64), "2:4", format=PackedVNM("all", 2, 4))
    with torch.autocast("cpu", torch.bfloat16):
        assert gs.linear(torch.randn(5, 64), weight, activation="relu").dtype == torch.bfloat16


def test_unknown_activation():
    with pytest.raises(ValueError, match=r"must be one of 'relu', 'gelu', 'silu', or None"):
        gs.linear(torch.randn(5, 64), torch.randn(3, 64), activation="tanh")
