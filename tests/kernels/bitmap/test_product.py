"""Products with packed bitmaps: forward and its gradients against dense, in a trace too."""

import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedBitmap
from gossamer.kernels.bitmap.product import BitmapProduct
from gossamer.kernels.product import Case


def test_forward_and_gradients():
    dense = gs.sparsify(torch.randn(70, 130, dtype=torch.float64), "60%", format=gs.Dense())
    weight = gs.from_dense(dense, PackedBitmap())
    product, x = BitmapProduct(weight.structure, False), torch.randn(2, 3, 130, dtype=torch.float64)
    bias = torch.randn(70, dtype=torch.float64)
    torch.testing.assert_close(product.forward(x, weight.values(), bias, 1), F.relu(F.linear(x, dense, bias)))
    grad = torch.randn(2, 3, 70, dtype=torch.float64)
    torch.testing.assert_close(product.back(grad, weight.values()), grad @ dense)
    sampled = gs.SparseTensor.from_arrays(
        PackedBitmap(), (70, 130), product.sample(grad, x), dict(weight.structure.arrays)
    )
    full = grad.flatten(0, 1).t() @ x.flatten(0, 1)
    torch.testing.assert_close(sampled.to_dense(), torch.where(dense != 0, full, 0))
    assert product.forward(x, weight.values(), None, feature_major=True).shape == (2, 3, 70)


def test_a_trace_has_gradients():
    dense = gs.sparsify(torch.randn(70, 130), "60%", format=gs.Dense())
    weight = gs.from_dense(dense, PackedBitmap())

    def run(x, values):
        return BitmapProduct(weight.structure, False).traced(x, values, None, 0)

    x, values = torch.randn(3, 130), weight.values().clone().requires_grad_()
    out = torch.compile(run, backend="aot_eager")(x, values)
    torch.testing.assert_close(out, x @ dense.t(), rtol=1e-4, atol=1e-4)
    out.sum().backward()
    assert values.grad is not None and values.grad.shape == values.shape
    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(run, backend="aot_eager")(x, values), x @ dense.t(), rtol=1e-4, atol=1e-4
        )


def test_what_it_takes():
    case = Case(PackedBitmap, False, torch.float16, "cuda", False, False)
    assert BitmapProduct.takes(case) is None
    assert "transpose" in BitmapProduct.takes(case._replace(transpose=True))
    assert "GPU" in BitmapProduct.takes(case._replace(device="cpu"))
