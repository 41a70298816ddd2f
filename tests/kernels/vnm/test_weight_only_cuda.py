"""Kernels for weights of 8 and 4 bits, run on a CPU by tests/native/emulator.py."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels.product import activated
from gossamer.kernels.vnm import weight_only_cuda
from gossamer.kernels.vnm.weight_only import decode_weight_only, pack_weight_only
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.mark.parametrize("element", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "v", "m"),
    [(64, 2056, 8, "all", 4), (130, 1204, 3, "all", 8), (70, 4096, 16, 64, 16), (100, 1032, 21, 16, 8)],
)
def test_products(rows, cols, tokens, v, m, bits, element, monkeypatch):
    emulate(monkeypatch, weight_only_cuda, 132)
    torch.manual_seed(rows)
    dense = gs.sparsify(torch.randn(rows, cols).to(element), gs.VNM(v, 2, m), format=gs.Dense())
    packed = pack_weight_only(dense, v, m, bits)
    x, bias, activation = torch.randn(tokens, cols).to(element), torch.randn(rows).to(element), rows % 4
    out = weight_only_cuda.KINDS.run(*packed[:4], x, bias, *packed.sizes, activation)
    a = decode_weight_only(*packed).double()
    exact = activated(x.double() @ a.t() + bias.double(), activation)
    unit = 2.0**-10 if element is torch.float16 else 2.0**-7
    bound = unit * exact.abs() + 2.0**-20 * (x.double().abs() @ a.abs().t() + bias.double().abs()) + 1e-6
    assert (out.double() - exact).abs().le(bound).all()


def test_reasons(monkeypatch):
    emulate(monkeypatch, weight_only_cuda)
    values, x = torch.zeros(8, dtype=torch.int32), torch.zeros(2, 8).half()
    assert weight_only_cuda.takes(values, x, 16) is None
    assert "multiple of 16" in weight_only_cuda.takes(values, x, 3)
    assert "float16 or bfloat16" in weight_only_cuda.takes(values, x.float(), 0)
    assert "int4" in weight_only_cuda.takes(x, x, 0)
    assert weight_only_cuda.takes(values, torch.zeros(1000, 8).half(), 0) is None  # many tokens: by a widened weight
