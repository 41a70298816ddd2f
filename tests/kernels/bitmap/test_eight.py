"""Bitmaps of e4m3 as an operator: the product by torch's own operators, and its fake."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.kernels.bitmap.eight import pack_bitmap8
from gossamer.kernels.bitmap.planes import unpack_planes


def test_by_hand():
    packed = pack_bitmap8(torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]]))
    out = torch.ops.gossamer.bitmap_8bit(*packed[:4], torch.ones(1, 3), None, *packed.sizes, 0)
    torch.testing.assert_close(out, torch.tensor([[2.0, 3.0]]))


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.97, 1.0])
def test_products(sparsity):
    dense = torch.randn(65, 127) * (torch.rand(65, 127) >= sparsity)
    packed = pack_bitmap8(dense)
    exact = unpack_planes(*packed[:3], *packed.sizes).float() * packed.scale[:, None]
    assert bool(((exact - dense).abs() <= dense.abs() / 16 + packed.scale[:, None] * 2**-10).all())
    x, bias = torch.randn(2, 4, 127), torch.randn(65)
    out = torch.ops.gossamer.bitmap_8bit(*packed[:4], x, bias, *packed.sizes, 1)
    moved = x.abs() / 16 + x.abs().amax(-1, keepdim=True) / 448 * 2**-10
    bound = moved @ exact.abs().t() + 1e-4
    assert bool(((out - F.relu(F.linear(x, exact, bias))).abs() <= bound).all())


def test_refused():
    with pytest.raises(ValueError, match="not finite"):
        pack_bitmap8(torch.tensor([[1.0, torch.nan]]))


def test_has_a_fake():
    packed = pack_bitmap8(torch.randn(64, 64))
    arguments = (*packed[:4], torch.randn(3, 64), None, *packed.sizes, 1)
    torch.library.opcheck(torch.ops.gossamer.bitmap_8bit.default, arguments, test_utils="test_faketensor")
