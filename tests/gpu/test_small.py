"""Kernels for 8-bit operands, weight-only and bitmaps on a GPU: right, and obedient to streams and graphs."""

import pytest
import torch

import gossamer as gs
from benchmarks.gpu_check import cases
from gossamer.kernels.bitmap import cuda as bitmap_cuda
from gossamer.kernels.bitmap.operators import pack_bitmap
from gossamer.kernels.vnm.eight import pack8
from gossamer.kernels.vnm.weight_only import pack_weight_only

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("first", range(8))
def test_every_kernel(first):
    for name, case in list(cases())[first::40]:
        torch.manual_seed(first)
        over = case()
        assert over <= 1, f"{name}: {over} times the bound"


def calls():
    """A call of each operator, of x [5, 512]."""
    dense = gs.sparsify(torch.randn(256, 512, device="cuda").half(), gs.VNM("all", 2, 8), format=gs.Dense())
    eight, four = pack8(dense, 8), pack_weight_only(dense, "all", 8, 4)
    values, (bits, pos, sizes) = pack_bitmap(dense)
    ops = torch.ops.gossamer
    return {
        "8-bit": lambda x: ops.vnm_8bit(*eight[:4], x, None, *eight.sizes, 0),
        "weight-only": lambda x: ops.vnm_weight_only(*four[:4], x, None, *four.sizes, 0),
        "bitmap": lambda x: ops.bitmap_linear(values, bits, pos, x, None, *sizes, 0),
    }


@pytest.mark.parametrize("name", ["8-bit", "weight-only", "bitmap"])
def test_streams_graphs_and_orders(name):
    call, x = calls()[name], torch.randn(5, 512, device="cuda").half()
    expected = call(x).clone()
    side = torch.cuda.Stream()
    late = torch.zeros_like(x)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # what another stream would read too early
        late.copy_(x)
        out = call(late)
    side.synchronize()
    assert torch.equal(out, expected)
    graph = torch.cuda.CUDAGraph()
    held = torch.zeros_like(x)
    with torch.cuda.graph(graph):
        out = call(held)
    held.copy_(x)
    graph.replay()
    assert torch.equal(out, expected)
    wide = torch.zeros(5, 600, device="cuda").half()
    wide[:, 3:515] = x
    for given in (x.t().contiguous().t(), wide[:, 3:515], wide[:, 3:515]):
        assert torch.equal(call(given), expected)
    assert call(x[:0]).shape == (0, 256)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "cols"), [(64, 64), (130, 1003), (1000, 520)])
def test_a_bitmap_as_a_dense_matrix(rows, cols, dtype):
    dense = (torch.randn(rows, cols, device="cuda") * (torch.rand(rows, cols, device="cuda") < 0.4)).to(dtype)
    values, (bits, pos, _) = pack_bitmap(dense)
    assert torch.equal(bitmap_cuda.dense_of(values, bits, pos, rows, cols), dense)
