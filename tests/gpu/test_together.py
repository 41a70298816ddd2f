"""Layers that share a launch, and compiled models, on a GPU."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.models.group import group_

pytestmark = pytest.mark.gpu


class Mlp(nn.Module):
    def __init__(self, width=512, inner=1024):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, rows, bias=False) for rows in (width, 128, 128))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        x = x + self.q(x) + F.pad(self.k(x) * self.v(x), (0, x.shape[-1] - 128))
        x = F.rms_norm(x, x.shape[-1:])
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


def pack(model, m=8):
    gs.sparsify_(model, {"[qkv]": "2:4", "*": None}, format=PackedVNM("all", 2, 4))
    return gs.sparsify_(model, {"[qkv]": None, "*": gs.VNM("all", 2, m)}, format=PackedVNM("all", 2, m))


def close(got, expected, dtype):
    unit = 2.0**-8 if dtype is torch.bfloat16 else 2.0**-11
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert bool(got.isfinite().all()) and float(error) < 4 * unit, float(error)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [1, 8, 33, 64, 600])
def test_one_launch(tokens, dtype):
    model = pack(Mlp().to("cuda", dtype))
    x = torch.randn(tokens, 512, device="cuda", dtype=dtype)
    with torch.no_grad():
        expected = model(x)
        assert ("q", "k", "v") in group_(model, x)
        close(model(x), expected, dtype)
        exact = x @ model.k.weight.to_dense().t()
        close(model.k(x), exact, dtype)


@pytest.mark.parametrize("tokens", [1, 9, 64, 700])
def test_compiled(tokens):
    model = pack(Mlp().to("cuda", torch.bfloat16))
    x = torch.randn(2, tokens, 512, device="cuda", dtype=torch.bfloat16) if tokens > 1 else torch.randn(
        1, 512, device="cuda", dtype=torch.bfloat16
    )  # fmt: skip
    with torch.no_grad():
        expected = model(x)
        group_(model, x)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True)
        close(compiled(x), expected, torch.bfloat16)
        close(compiled(x), expected, torch.bfloat16)


@pytest.mark.parametrize("numbers", ["fp8", "int8"])
@pytest.mark.parametrize("tokens", [1, 16, 64, 300])
def test_compiled_in_eight_bits(tokens, numbers):
    model = Mlp().to("cuda", torch.bfloat16)
    gs.sparsify_(model, {"[qkv]": "2:4", "*": gs.VNM("all", 2, 8)})
    gs.quantize_(model, numbers)
    x = torch.randn(tokens, 512, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        expected = copy.deepcopy(model)(x)
        group_(model, x)
        torch._dynamo.reset()
        got = torch.compile(model, fullgraph=True)(x)
    error = (got.float() - expected.float()).norm() / expected.float().norm()
    assert bool(got.isfinite().all()) and float(error) < 0.02, float(error)
