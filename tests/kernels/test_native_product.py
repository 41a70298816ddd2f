"""What products by native kernels share: which cases they take, types, layouts, and gradients in traces."""

import pytest
import torch

import gossamer as gs
from gossamer import native
from gossamer.kernels.blocks.product import BlocksProduct
from gossamer.kernels.native_product import NativeProduct, as_native
from gossamer.kernels.product import Case
from gossamer.kernels.rows.product import RowsProduct

needs_kernels = pytest.mark.skipif(not native.load(), reason="no native kernels here")
FAMILIES = [(RowsProduct, gs.formats.PackedCSR()), (BlocksProduct, gs.BSR((2, 2)))]
families = pytest.mark.parametrize(("family", "format"), FAMILIES, ids=["rows", "blocks"])

W = torch.zeros(4, 6)
W[0, 1], W[1, 0], W[3, 4] = 2.0, 3.0, -1.0
X = torch.arange(1.0, 13).view(2, 6)
OUT = [[4.0, 3.0, 0.0, -5.0], [16.0, 21.0, 0.0, -11.0]]


def kernel(family, format, dtype=torch.float32):
    t = gs.from_dense(W.to(dtype), format)
    return family(t.structure, False), t._values


def test_types_that_kernels_read():
    for dtype in (torch.float32, torch.bfloat16):
        t = torch.ones(2, dtype=dtype)
        assert as_native(t) is t
    assert as_native(torch.ones(2).half()).dtype is torch.float32


@needs_kernels
@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_by_hand_in_every_type(family, format, dtype):
    product, values = kernel(family, format, dtype)
    assert (product.rows, product.cols) == (4, 6)
    bias = torch.tensor([1.0, 0.0, 0.0, 5.0], dtype=dtype)
    out = product.forward(X.to(dtype), values, bias)
    assert out.dtype is dtype and out.tolist() == [[5.0, 3.0, 0.0, 0.0], [17.0, 21.0, 0.0, -6.0]]
    grad = torch.tensor([[1.0, 2.0, 3.0, 4.0]], dtype=dtype)
    back = product.back(grad, values)
    assert back.dtype is dtype and back.tolist() == [[6.0, 2.0, 0.0, 0.0, -4.0, 0.0]]
    sample = product.sample(grad, X[:1].to(dtype))
    assert sample.dtype is dtype
    t = gs.SparseTensor(product.clean(sample.view(values.shape)), gs.from_dense(W, format).structure)
    assert t.to_dense()[0, 1] == 2.0 and t.to_dense()[1, 0] == 2.0 and t.to_dense()[3, 4] == 20.0


@needs_kernels
@families
def test_inputs_that_are_not_contiguous_and_of_other_dimensions(family, format):
    product, values = kernel(family, format)
    assert product.forward(X.t().contiguous().t(), values, None).tolist() == OUT
    assert product.forward(torch.stack([X, X], -1)[..., 0], values, None).tolist() == OUT
    assert product.forward(X[0], values, None).tolist() == OUT[0]
    assert product.forward(X.view(2, 1, 6), values, None).tolist() == [[row] for row in OUT]


@families
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"turned": True}, "the values are stored along the other dimension"),
        ({"transpose": True}, "the values are stored along the other dimension"),
        ({"device": "cuda"}, "its kernels run on a CPU"),
        ({"dtype": torch.float64}, "its kernels take float32, bfloat16 and float16"),
    ],
)
def test_which_cases_they_take(family, format, change, reason):
    fields = {"device": "cpu", "dtype": torch.float32, "transpose": False, "turned": False, **change}
    case = Case(**{name: fields.get(name) for name in Case._fields})
    assert NativeProduct.takes(case) == reason


def test_kernels_that_could_not_be_built(monkeypatch):
    fields = {"device": "cpu", "dtype": torch.float32, "transpose": False, "turned": False}
    monkeypatch.setattr(native, "loaded", lambda: False)
    case = Case(**{name: fields.get(name) for name in Case._fields})
    assert NativeProduct.takes(case) == "the native kernels could not be built"
    monkeypatch.setattr(native, "loaded", lambda: None)  # not tried yet
    assert NativeProduct.takes(case) is None


@needs_kernels
@families
def test_gradients_of_the_operators(family, format):
    product, values = kernel(family, format)
    ops = torch.ops.gossamer
    linear = getattr(ops, f"{family.prefix}_linear")
    values, x = values.clone().requires_grad_(), X.clone().requires_grad_()
    bias = torch.zeros(4, requires_grad=True)
    out = linear(*product.arrays, values, x, bias, *product.sizes, 0)
    out.backward(torch.ones(2, 4))
    assert out.tolist() == OUT
    assert x.grad.tolist() == [[3.0, 2.0, 0.0, 0.0, -1.0, 0.0]] * 2 and bias.grad.tolist() == [2.0] * 4
    assert gs.SparseTensor(product.clean(values.grad), gs.from_dense(W, format).structure).to_dense()[0, 1] == 10.0
    with pytest.raises(NotImplementedError, match="a fused activation has no gradient: apply it after the product"):
        linear(*product.arrays, values, x, bias, *product.sizes, 1)
    with torch.no_grad():
        assert linear(*product.arrays, values, x, None, *product.sizes, 1).tolist()[0] == [4.0, 3.0, 0.0, 0.0]
