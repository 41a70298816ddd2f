"""Weights of 8 and 4 bits with activations of 16: packing, and the product by torch's own operators."""

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.kernels.vnm.weight_only import (
    decode_weight_only,
    linear_weight_only,
    linear_widened,
    pack_weight_only,
    widened,
)


def test_by_hand():
    dense = torch.tensor([[3.5, 0, -1.5, 0], [0, -7.0, 0, 2]])
    packed = pack_weight_only(dense, "all", 4, 4)
    assert packed.scale[0, :2].tolist() == [0.5, 1.0]
    assert torch.equal(decode_weight_only(*packed), dense)
    out = linear_weight_only(*packed[:4], torch.ones(1, 4), None, *packed.sizes, 0)
    assert out.tolist() == [[2.0, -5.0]]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "cols", "v", "m"), [(1, 3, "all", 4), (70, 200, "all", 8), (130, 1000, 16, 16)])
def test_rounding_is_within_half_a_unit(rows, cols, v, m, bits):
    dense = gs.sparsify(torch.randn(rows, cols), gs.VNM(v, 2, m), format=gs.Dense())
    packed = pack_weight_only(dense, v, m, bits)
    error = (decode_weight_only(*packed) - dense).abs()
    if bits == 8:
        unit = dense.abs() / 16 + packed.scale[:, None] * 2.0**-10
    else:
        unit = packed.scale.t()[:rows].repeat_interleave(16 * m, 1)[:, :cols] / 2
    assert bool((error <= 1.001 * unit).all())
    x = torch.randn(3, cols)
    out = linear_weight_only(*packed[:4], x, None, *packed.sizes, 1)
    torch.testing.assert_close(out, F.relu(x @ decode_weight_only(*packed).t()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("v", "m", "bits"), [("all", 4, 4), (64, 8, 4), ("all", 8, 8), (64, 8, 8)])
def test_widened_values_are_those_of_the_decoded_weight(v, m, bits):
    dense = gs.sparsify(torch.randn(100, 300).bfloat16(), gs.VNM(v, 2, m), format=gs.Dense())
    values, shared, meta, scale, sizes = pack_weight_only(dense, v, m, bits)
    wide = widened(values, scale, 100, 300, m, torch.bfloat16)
    decoded = torch.ops.gossamer.vnm_decode(wide, shared, meta, *sizes)
    assert torch.equal(decoded, decode_weight_only(values, shared, meta, scale, sizes).bfloat16())
    x, bias = torch.randn(3, 300).bfloat16(), torch.randn(100).bfloat16()
    out = linear_widened(values, shared, meta, scale, x, bias, *sizes, 0)
    torch.testing.assert_close(out, x @ decoded.t() + bias, rtol=2e-2, atol=2e-2)
