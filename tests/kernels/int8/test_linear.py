"""int8_linear: shapes, types, gradients, traces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gossamer import native
from gossamer.kernels.int8.layout import Layout, dense_of, pack_as
from gossamer.kernels.int8.linear import int8_linear
from gossamer.kernels.int8.weight import rounded

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")


def a_packed(rows: int = 12, cols: int = 20) -> Tensor:
    weight = torch.randn(rows, cols) * (torch.rand(rows, cols) < 0.5)
    return pack_as(rounded(weight), weight != 0, Layout("lookup"))


def test_shapes_and_types() -> None:
    packed, x = a_packed(), torch.randn(2, 3, 20)
    out = int8_linear(x, packed, 12)
    assert out.shape == (2, 3, 12) and int8_linear(x[0, 0], packed, 12).shape == (12,)
    assert torch.equal(int8_linear(x[0, 0], packed, 12), out[0, 0])
    assert torch.equal(int8_linear(x.transpose(0, 1), packed, 12), out.transpose(0, 1))
    assert torch.equal(int8_linear(x[:, :1].expand(2, 3, 20), packed, 12), out[:, :1].expand(2, 3, 12))
    assert int8_linear(x.double(), packed, 12).dtype is torch.float64
    assert int8_linear(x.half(), packed, 12, torch.ones(12).half()).dtype is torch.float16
    assert int8_linear(x[:0], packed, 12).shape == (0, 3, 12)
    with pytest.raises(ValueError, match="activation='tanh' must be one of"):
        int8_linear(x, packed, 12, None, "tanh")


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "silu"])
def test_gradients_are_those_without_rounding(activation: str) -> None:
    packed, bias = a_packed(), torch.randn(12, requires_grad=True)
    x = torch.randn(5, 20, requires_grad=True)
    int8_linear(x[0], packed, 12, bias).sum().backward()  # one token
    x.grad = bias.grad = None
    out = int8_linear(x, packed, 12, bias, activation)
    with torch.no_grad():
        torch.testing.assert_close(out, int8_linear(x, packed, 12, bias, activation))
    if activation != "none":
        out.sum().backward()
        assert x.grad is not None and bias.grad is not None
        return
    out.backward(torch.arange(12.0).expand(5, 12))
    torch.testing.assert_close(x.grad, torch.arange(12.0).expand(5, 12) @ dense_of(packed))
    torch.testing.assert_close(bias.grad, torch.arange(12.0) * 5)


@pytest.mark.parametrize("grad", [False, True])
def test_compiles_in_one_graph(grad: bool) -> None:
    torch._dynamo.reset()
    packed, x = a_packed(), torch.randn(2, 5, 20, requires_grad=grad)
    eager = int8_linear(x, packed, 12, None, "gelu")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Tensor) -> Tensor:
        return int8_linear(x, packed, 12, None, "gelu")

    out = compiled(x)
    torch.testing.assert_close(out, eager)
    if grad:
        (want,) = torch.autograd.grad(eager.sum(), x)
        torch.testing.assert_close(torch.autograd.grad(out.sum(), x)[0], want)


def test_exports_with_any_number_of_tokens() -> None:
    class Layer(torch.nn.Module):
        packed: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("packed", a_packed())

        def forward(self, x: Tensor) -> Tensor:
            return int8_linear(x, self.packed, 12)

    layer, tokens = Layer(), torch.export.Dim("tokens", min=1, max=64)
    with torch.no_grad():
        program = torch.export.export(layer, (torch.randn(5, 20),), dynamic_shapes=({0: tokens},))
        x = torch.randn(9, 20)
        assert torch.equal(program.module()(x), layer(x))
