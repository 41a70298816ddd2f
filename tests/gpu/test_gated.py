"""Gated MLPs on a GPU: the kernels against float64, and models that are compiled, captured and run on other streams."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels.vnm import gated
from gossamer.models.gated import Gated
from gossamer.models.group import group_
from tests.kernels.vnm.test_gated import check, operands

pytestmark = pytest.mark.gpu


def moved(given):
    return tuple(part.cuda() if isinstance(part, torch.Tensor) else part for part in given)


@pytest.mark.parametrize("numbers", [None, torch.float8_e4m3fn, torch.int8], ids=str)
@pytest.mark.parametrize("tokens", [1, 8, 16, 33, 64, 128, 200, 600, 2049])
@pytest.mark.parametrize(("rows", "cols", "m"), [(704, 1024, 4), (1408, 1040, 8)])
def test_against_exact_numbers(tokens, rows, cols, m, numbers):
    dense, given = operands(rows, cols, tokens, m, torch.bfloat16, numbers=numbers)
    out = torch.ops.gossamer.vnm_gated(*moved(given)).cpu()
    # tensor cores keep 13 bits of a sum of e4m3: of the products of 64 columns, and of each further 64
    check(out, given, dense, sums=(4 * cols / m / 64 + 4) * 2.0**-13 if numbers is torch.float8_e4m3fn else None)
    again = torch.ops.gossamer.vnm_gated(*moved(given)).cpu()  # by the library that launches without Python
    assert torch.equal(out, again) and gated.takes(given[0].cuda(), given[7].cuda(), rows, cols) is None


class Mlp(nn.Module):
    def __init__(self, width=512, inner=1024):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = nn.Linear(inner, width, bias=False), nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x):
        return x + self.mlp(F.rms_norm(x, x.shape[-1:]))


def model(numbers=None, m=8):
    torch.manual_seed(0)
    made = nn.Sequential(Block(), Block()).to("cuda", torch.bfloat16)
    if numbers is None:
        gs.sparsify_(made, gs.VNM("all", 2, m), format=PackedVNM("all", 2, m))
    else:
        gs.quantize_(gs.sparsify_(made, gs.VNM("all", 2, m)), numbers)
    return made


def close(got, expected):
    assert bool(got.isfinite().all()) and (got.float() - expected.float()).norm() < 0.02 * expected.float().norm()


@pytest.mark.parametrize("numbers", [None, "fp8", "int8"])
@pytest.mark.parametrize("tokens", [1, 9, 64, 700])
def test_models(tokens, numbers):
    net, x = model(numbers), torch.randn(2, tokens, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = net(x)
        assert group_(net, x) == [("0.mlp.gate_proj", "0.mlp.up_proj"), ("1.mlp.gate_proj", "1.mlp.up_proj")]
        assert isinstance(net[0].mlp.__dict__["forward"], Gated)
        eager = net(x)
        close(eager, expected)
        torch._dynamo.reset()
        close(torch.compile(net, fullgraph=True)(x), expected)
        compiled = torch.compile(net, mode="reduce-overhead")
        for _ in range(3):
            close(compiled(x), expected)
        other = torch.cuda.Stream()
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            mine = net(x)
        torch.cuda.current_stream().wait_stream(other)
        assert torch.equal(mine, eager)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            held = net(x)
        x.copy_(x.flip(0))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(held.flip(0), eager)


def test_shrunk():
    net, x = model(), torch.randn(33, 512, device="cuda", dtype=torch.bfloat16)
    gs.densify_(net)
    with torch.no_grad():
        expected = net(x)
        assert gs.nn.shrink_(net)["0.mlp.gate_proj"] == (1024, 512)
        close(net(x), expected)
        gs.sparsify_(net, {"*gate_proj": "all:2:8", "*up_proj": "all:2:8", "*down_proj": "2:4"})
        report = gs.pack_(net, x, quiet=True)
        close(net(x), expected)
    assert len(report.layers) == 6
