"""The operators of packed V:N:M on a CPU: by hand, next to dense, and their errors."""

import pytest
import torch

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels.vnm.operators import empty_result, feature_major, vnm_of

OPS = torch.ops.gossamer


def packed(rows, cols, v, m):
    dense = gs.sparsify(torch.randn(rows, cols), gs.VNM(v, 2, m), format=gs.Dense())
    return dense, gs.from_dense(dense, PackedVNM(v, 2, m))


@pytest.mark.parametrize("rows, cols, v, m", [(1, 8, 16, 8), (20, 70, 16, 8), (64, 64, 64, 4), (17, 33, 16, 10)])
def test_decode_and_sample_are_inverse(rows, cols, v, m):
    dense, weight = packed(rows, cols, v, m)
    shared, meta, sizes = vnm_of(weight.structure)
    assert sizes == (rows, cols, 0 if m == 4 else v, m)  # 2:4 shares no columns
    assert torch.equal(OPS.vnm_decode(weight.values(), shared, meta, *sizes), dense)
    assert torch.equal(OPS.vnm_sample(dense, shared, meta, *sizes), weight.values())


def test_orders_of_tokens():
    one = torch.zeros(1, 8)
    assert not feature_major(one) and not feature_major(torch.zeros(8, 1).t()) and feature_major(torch.zeros(8, 2).t())
    assert empty_result(torch.zeros(3, 8), 5, turned=True).stride() == (1, 8)
    assert empty_result(torch.zeros(0, 8), 5).shape == (0, 5)


def test_a_fused_activation_has_no_gradient():
    _, weight = packed(20, 70, 16, 8)
    shared, meta, sizes = vnm_of(weight.structure)
    out = OPS.vnm_linear(weight.values().requires_grad_(), shared, meta, torch.randn(2, 70), None, *sizes, 1)
    with pytest.raises(NotImplementedError, match="a fused activation has no gradient: apply it after the product"):
        out.sum().backward()
