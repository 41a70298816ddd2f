"""Weights of 8 and 4 bits: rounded, packed, decoded, checked."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.weight import Arrays, check, decoded, dense_values, packed_as, quantized

LAYOUTS = [Layout("fp8"), Layout("int8"), Layout("fp8", "all", 4), Layout("int8", "all", 8), Layout("fp8", 64, 8, True),
           Layout("int4", "all", 4, True), Layout("int4", 64, 8, True), Layout("fp8", bitmap=True)]  # fmt: skip


def weight(rows, cols, layout):
    torch.manual_seed(0)
    dense = torch.randn(rows, cols)
    if layout.bitmap:
        return gs.sparsify(dense, "60%", format=gs.Dense())
    return gs.sparsify(dense, gs.VNM(layout.v, 2, layout.m), format=gs.Dense()) if layout.m else dense


def test_an_example():
    small = quantized(torch.tensor([[127.0, -63.6], [0, 0]]), Layout("int8"))
    assert small.values.tolist() == [[127, -64], [0, 0]] and float(small.scale[0]) == 1.0 and float(small.scale[1]) > 0
    assert decoded(small, Layout("int8"), (2, 2)).tolist() == [[127.0, -64.0], [0.0, 0.0]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize(("rows", "cols"), [(64, 256), (130, 520), (1, 8), (65, 1000)])
def test_within_half_a_unit(layout, rows, cols):
    dense = weight(rows, cols, layout)
    arrays = quantized(dense, layout)
    check(arrays, layout, (rows, cols))
    back = decoded(arrays, layout, (rows, cols))
    assert bool(((dense == 0) <= (back == 0)).all())
    scale = arrays.scale.float()[:, None]
    if layout.numbers == "int4":
        steps = torch.arange(cols) // (16 * layout.m)
        scale = arrays.scale.float()[steps][:, :rows].t()
    bound = scale * {"fp8": 2.0**-10, "int8": 0.5, "int4": 0.5}[layout.numbers]
    bound = bound + dense.abs() / {"fp8": 16, "int8": 1e6, "int4": 100}[layout.numbers]
    assert bool(((back - dense).abs() <= bound * 1.001).all())


def test_layouts_hold_the_same_numbers():
    layout = Layout("fp8", "all", 8)
    arrays = quantized(weight(128, 256, layout), layout)
    small = dense_values(arrays, layout, (128, 256))
    for other in (Layout("fp8"), Layout("fp8", "all", 8, True), layout):
        again = packed_as(small, arrays.scale, other)
        assert torch.equal(decoded(again, other, (128, 256)), decoded(arrays, layout, (128, 256)))
    assert torch.equal(again.values.view(torch.int8), arrays.values.view(torch.int8))
    bitmap = Layout("fp8", bitmap=True)
    again = packed_as(dense_values(packed_as(small, arrays.scale, bitmap), bitmap, (128, 256)), arrays.scale, layout)
    assert torch.equal(again.values.view(torch.int8), arrays.values.view(torch.int8))


def test_zeros_may_have_a_sign():
    dense = torch.tensor([[3.0, -0.0, -0.0, 1.0], [-1e-9, 2.0, 0.0, -0.0]])
    for layout in (
        Layout("fp8", "all", 4),
        Layout("int8", "all", 4),
        Layout("fp8", bitmap=True),
        Layout("int4", "all", 4, True),
    ):
        assert decoded(quantized(dense, layout), layout, (2, 4))[0, 0] == 3.0


def test_refused():
    with pytest.raises(ValueError, match="not finite"):
        quantized(torch.tensor([[1.0, torch.inf]]), Layout("fp8"))
    with pytest.raises(ValueError, match="keeps 4"):
        quantized(torch.ones(1, 4), Layout("fp8", "all", 4))
    good = quantized(torch.ones(2, 4), Layout("fp8"))
    with pytest.raises(ValueError, match="missing"):
        check(good, Layout("fp8", "all", 4), (2, 4))
    with pytest.raises(ValueError, match="missing"):
        check(good, Layout("fp8", bitmap=True), (2, 4))
    bitmap = quantized(torch.ones(2, 4), Layout("fp8", bitmap=True))
    with pytest.raises(ValueError, match="places"):
        check(bitmap._replace(shared=bitmap.shared + 1), Layout("fp8", bitmap=True), (2, 4))
    with pytest.raises(ValueError, match="the layer"):
        check(good, Layout("fp8"), (2, 5))
    with pytest.raises(ValueError, match="more than 0"):
        check(Arrays(good.values, -good.scale), Layout("fp8"), (2, 4))
