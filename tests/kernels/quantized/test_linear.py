"""One function for all layouts: shapes, types, bias."""

import pytest
import torch

from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.linear import quantized_linear
from gossamer.kernels.quantized.weight import decoded, quantized
from tests.kernels.quantized.test_weight import LAYOUTS, weight


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_close_to_the_decoded_weight(layout, dtype):
    dense = weight(70, 264, layout)
    arrays, bias = quantized(dense, layout), torch.randn(70)
    x = torch.randn(2, 3, 264).to(dtype)
    out = quantized_linear(x, arrays, layout, (70, 264), bias)
    exact = x.float() @ decoded(arrays, layout, (70, 264)).t() + bias
    assert out.shape == (2, 3, 70) and out.dtype is dtype
    assert float((out.float() - exact).norm() / exact.norm()) < (0.01 if layout.weights_only else 0.05)
    one = quantized_linear(x[0, 0], arrays, layout, (70, 264), bias)
    torch.testing.assert_close(one, out[0, 0], rtol=2e-2, atol=2e-2)


def test_a_bitmap_is_one_graph():
    layout = Layout("fp8", bitmap=True)
    arrays, bias = quantized(weight(70, 264, layout), layout), torch.randn(70)

    def run(x):
        return quantized_linear(x, arrays, layout, (70, 264), bias).relu()

    x = torch.randn(3, 264)
    traced = torch.compile(run, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(traced(x), run(x))
