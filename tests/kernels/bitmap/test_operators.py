"""Packed bitmaps as an operator: packing, and the product by torch's own operators."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.kernels.bitmap.operators import decode, linear, pack_bitmap


def test_by_hand():
    dense = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 3.0]])
    values, (bits, pos, sizes) = pack_bitmap(dense)
    assert (values[0], values[4 * 2]) == (2.0, 3.0) and sizes == (2, 3, 64)  # single values of lanes 0 and 4
    assert pos.tolist() == [0, 1]
    assert linear(values, bits, pos, torch.ones(1, 3), None, *sizes, 0).tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (64, 64), (65, 127), (200, 300)])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.97, 1.0])
def test_packing_is_exact(rows, cols, sparsity):
    dense = torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)
    values, (bits, pos, sizes) = pack_bitmap(dense)
    assert torch.equal(decode(values, bits, pos, rows, cols), dense)
    x, bias = torch.randn(4, cols), torch.randn(rows)
    out = torch.ops.gossamer.bitmap_linear(values, bits, pos, x, bias, *sizes, 1)
    torch.testing.assert_close(out, F.relu(F.linear(x, dense, bias)), rtol=1e-4, atol=1e-4)


def test_has_a_fake():
    values, (bits, pos, sizes) = pack_bitmap(torch.randn(64, 64))
    arguments = (values, bits, pos, torch.randn(3, 64), None, *sizes, 1)
    torch.library.opcheck(
        torch.ops.gossamer.bitmap_linear.default, arguments, test_utils=("test_schema", "test_faketensor")
    )
