"""Weights of several experts in 8 bits: packed one by one, as all of them together would be; decoded, and checked."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import gossamer as gs
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.stack import (
    check_layout,
    check_stack,
    decoded_one,
    decoded_stack,
    experts_product,
    layout_of,
    one_of,
    stacked,
)
from gossamer.kernels.quantized.weight import Arrays, decoded, quantized
from gossamer.kernels.vnm.eight import quantize


def weights(m: int, count: int = 3, rows: int = 128, cols: int = 272) -> Tensor:
    torch.manual_seed(m)
    dense = torch.randn(count, rows, cols)
    return torch.stack([gs.sparsify(one, gs.VNM("all", 2, m), format=gs.Dense()) for one in dense])


@pytest.mark.parametrize("m", [4, 8, 16])
@pytest.mark.parametrize("numbers", ["fp8", "int8"])
def test_as_the_rows_of_all_experts_packed_together(m: int, numbers: str) -> None:
    dense, layout = weights(m), layout_of(numbers, 128, m)  # type: ignore[arg-type]
    arrays, together = stacked(dense, layout), quantized(dense.flatten(0, 1), layout)
    for own, other in zip(arrays, together, strict=True):
        if own is None:
            assert m == 4 and other is not None and not other.numel()
        else:
            assert other is not None and torch.equal(own.view(torch.uint8), other.view(torch.uint8))
    whole = decoded(together, layout, (3 * 128, 272)).view(3, 128, 272)
    assert torch.equal(decoded_stack(arrays, layout, (3, 128, 272)), whole)
    assert torch.equal(decoded_one(arrays, layout, (3, 128, 272), 2), whole[2])
    assert decoded_stack(arrays, layout, (3, 128, 272), torch.float16).dtype is torch.float16
    assert one_of(arrays, (3, 128, 272), 1).scale.shape == (128,)
    check_stack(arrays, layout, (3, 128, 272))


def test_layouts_of_experts() -> None:
    check_layout(Layout("fp8", "all", 4), (2, 64, 137))
    check_layout(Layout("int8", 64, 8), (2, 64, 136))
    for layout, shape in (
        (Layout("fp8"), (2, 64, 64)), (Layout("fp8", 64, 8, weights_only=True), (2, 64, 64)),
        (Layout("int4", "all", 4, weights_only=True), (2, 64, 64)), (Layout("fp8", "all", 8), (2, 64, 64)),
        (Layout("fp8", 64, 8), (2, 128, 64)),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="2:4 or"):
            check_layout(layout, shape)
    for layout, shape in ((Layout("fp8", "all", 4), (2, 70, 64)), (Layout("fp8", 64, 8), (2, 64, 68))):
        with pytest.raises(ValueError, match="multiple of 64 rows"):
            check_layout(layout, shape)
    with pytest.raises(ValueError, match="keeps 4 of 4"):
        stacked(torch.ones(2, 64, 64), Layout("fp8", "all", 4))


@pytest.mark.parametrize("m", [4, 8])
def test_broken_arrays_are_refused(m: int) -> None:
    layout, shape = layout_of("fp8", 64, m), (2, 64, 64)
    good = stacked(weights(m, 2, 64, 64), layout)
    values, scale, shared, meta = good
    assert meta is not None
    bad = [
        (Arrays(values[:-1], scale, shared, meta), "an array"),
        (Arrays(values.view(torch.int8), scale, shared, meta), "an array"),
        (Arrays(values, scale[:-1], shared, meta), "an array"),
        (Arrays(values, scale.double(), shared, meta), "an array"),
        (Arrays(values, scale.clone().fill_(torch.nan), shared, meta), "finite"),
        (Arrays(values, scale, shared, meta[:-1]), "an array"),
        (Arrays(values, scale, shared, meta.long()), "an array"),
        (Arrays(values, scale, shared, torch.zeros_like(meta)), "ascend"),
        (Arrays(values, scale, shared, None), "missing"),
    ]
    if shared is None:
        bad.append((Arrays(values, scale, torch.zeros(1, dtype=torch.uint8), meta), "shares none"))
    else:
        bad.append((Arrays(values, scale, None, meta), "missing"))
        bad.append((Arrays(values, scale, shared[:1], meta), "an array"))
        bad.append((Arrays(values, scale, shared + 200, meta), "cols|column|outside|range"))
    for arrays, said in bad:
        with pytest.raises(ValueError, match=said):
            check_stack(arrays, layout, shape)


@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_products(element: torch.dtype) -> None:
    dense, layout = weights(4, 3, 64, 70), Layout("fp8", "all", 4)
    arrays, x, bias = stacked(dense, layout), torch.randn(6, 70).to(element), torch.randn(3, 64)
    out = experts_product(x, arrays, layout, (3, 64, 70), bias, torch.tensor([2, 2, 6], dtype=torch.int32))
    weight, (small, scale) = decoded_stack(arrays, layout, (3, 64, 70)).double(), quantize(x, None, 70, 4, layout.dtype)
    rounded = small.double() * scale.double()[:, None]
    exact = torch.cat([rounded[:2] @ weight[0].t() + bias[0], rounded[2:] @ weight[2].t() + bias[2]])
    size = rounded.abs() @ weight.abs().amax(0).t() + bias.abs().amax(0)
    unit = max(torch.finfo(element).eps, torch.finfo(torch.float32).eps)
    assert out.dtype is element and bool(
        ((out - exact).abs() <= unit * (exact.abs() + 2 * abs(bias).max()) + 75 * 2.0**-24 * size).all()
    )
