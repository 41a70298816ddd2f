"""Weights of 8 bits: packing, and the product by torch's own operators."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.vnm.eight import LARGEST, decode8, linear8, pack8, quantize

E4M3 = torch.float8_e4m3fn


def weight(rows, cols, m, dtype=torch.float32):
    return gs.sparsify(torch.randn(rows, cols).to(dtype), gs.VNM("all", 2, m), format=gs.Dense())


def test_by_hand():
    dense = torch.tensor([[3.0, 0, -1.5, 0], [0, 0, 0, 0]])
    values, shared, meta, scale, sizes = pack8(dense, 4, torch.int8)
    assert torch.equal(decode8(values, shared, meta, sizes), torch.tensor([[127.0, 0, -64, 0], [0, 0, 0, 0]]))
    assert scale[0] == 3 / torch.tensor(127.0) and sizes == (2, 4, 0, 4)
    x = torch.tensor([[1.0, 5.0, 2.0, 0.0]])
    small, tokens = quantize(x, shared, 4, 4, torch.int8)
    assert small.tolist() == [[25, 127, 51, 0]] and tokens[0] == 5 / torch.tensor(127.0)
    out = linear8(values, shared, meta, scale, x, None, *sizes, 0)
    expected = (127 * 25 - 64 * 51) * (3 / 127) * (5 / 127)
    torch.testing.assert_close(out, torch.tensor([[expected, 0.0]]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize(("rows", "cols", "m"), [(1, 1, 4), (70, 200, 4), (65, 1000, 8), (128, 300, 100)])
def test_rounding_is_within_half_a_unit(rows, cols, m, dtype):
    dense = weight(rows, cols, m)
    values, shared, meta, scale, sizes = pack8(dense, m, dtype)
    error = (decode8(values, shared, meta, sizes) * scale[:, None] - dense).abs()
    unit = scale[:, None] / 2 if dtype is torch.int8 else dense.abs() / 16 + scale[:, None] * 2.0**-10
    assert bool((error <= 1.001 * unit).all())


def test_columns_that_are_not_read_do_not_count():
    dense = weight(64, 64, 8)
    _, shared, *_ = pack8(dense, 8)
    x = torch.where((dense != 0).any(0), 1.0, 1e6)[None]
    assert quantize(x, shared, 64, 8, E4M3)[1][0] <= 1 / 448 + 1e-6


def test_what_is_not_finite():
    with pytest.raises(ValueError, match="not finite"):
        pack8(torch.tensor([[torch.inf, 0, 0, 0]]), 4)
    values, shared, meta, scale, sizes = pack8(weight(8, 16, 4), 4)
    x = torch.zeros(2, 16)
    x[0, 3] = torch.inf
    out = linear8(values, shared, meta, scale, x, None, *sizes, 0)
    assert bool(out[0].isnan().all()) and bool((out[1] == 0).all())


def test_has_a_fake():
    packed = pack8(weight(64, 128, 8, torch.float16), 8)
    x = torch.randn(3, 128).half()
    arguments = (*packed[:4], x, None, *packed.sizes, 1)
    torch.library.opcheck(torch.ops.gossamer.vnm_8bit.default, arguments, test_utils="test_faketensor")
