"""Kernels for tensor cores, run on a CPU by tests/native/emulator.py: indices, edges, waits, sizes of shared memory."""

import functools

import pytest
import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.formats import PackedVNM
from gossamer.kernels import gpu
from gossamer.kernels.product import activated
from gossamer.kernels.vnm import cuda as vnm_cuda
from gossamer.kernels.vnm import products
from gossamer.kernels.vnm.operators import vnm_of
from gossamer.native.build import compiler
from gossamer.native.cuda import calls
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    """A GPU of two processors, so that a block has several tiles; the cases have more steps than a ring has slots."""
    monkeypatch.setattr(products, "function", emulator.function)
    monkeypatch.setattr(calls, "tensor_map", emulator.tensor_map)
    monkeypatch.setattr(vnm_cuda, "usable", lambda: True)
    monkeypatch.setattr(products, "_ready", {})
    monkeypatch.setattr(vnm_cuda, "_known", {})
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(gpu, "processors", lambda device: 2)
    monkeypatch.setattr(vnm_cuda, "transpose", lambda x: x.t().contiguous() if x.shape[0] % 8 == 0 else _padded(x))


def _padded(x):
    lines = x.new_empty(x.shape[1], -(-x.shape[0] // 8) * 8)
    return lines[:, : x.shape[0]].copy_(x.t())


def check(rows, cols, tokens, v, m, *, turned=False, dtype=torch.float16, activation=0, plan):
    torch.manual_seed(rows + cols + tokens)
    dense = gs.sparsify(torch.randn(rows, cols).to(dtype), gs.VNM(v, 2, m), format=gs.Dense())
    weight = gs.from_dense(dense, PackedVNM(v, 2, m))
    shared, meta, sizes = vnm_of(weight.structure)
    bias = torch.randn(rows).to(dtype)
    x = torch.randn(tokens, cols).to(dtype)
    given = _padded(x).t() if turned else x
    out = vnm_cuda.linear(weight.values(), shared, meta, given, bias, *sizes, activation)
    assert {kind.plan for kind in vnm_cuda._known.values()} == {plan}
    expected = activated(F.linear(x.double(), dense.double(), bias.double()), activation)
    unit = 2.0**-10 if dtype is torch.float16 else 2.0**-7
    bound = unit * expected.abs() + 2.0**-20 * (x.double().abs() @ dense.double().abs().t()) + 1e-6
    assert (out.double() - expected).abs().le(bound).all()
    assert out.stride(0) == 1 if turned else out.is_contiguous()


@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "v", "m"),
    [
        (64, 4104, 8, "all", 4), (130, 6204, 3, "all", 8), (70, 8192, 16, 64, 16), (100, 2056, 1, 16, 8),
        (64, 40000, 7, "all", 100), (65, 96, 5, "all", 32), (128, 12296, 12, 128, 24),
        (2116, 3080, 2, "all", 4), (8204, 136, 3, "all", 8),
    ],
)  # fmt: skip
def test_few_tokens(rows, cols, tokens, v, m, monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    check(
        rows,
        cols,
        tokens,
        v,
        m,
        dtype=torch.bfloat16 if tokens == 3 else torch.float16,
        activation=tokens % 4,
        plan="some" if m == 4 else "few",
    )


@pytest.mark.parametrize(("v", "m"), [("all", 4), (16, 8)])
def test_few_tokens_on_the_gpu_before(v, m, monkeypatch):
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    monkeypatch.setattr(products, "function", functools.partial(emulator.function, architecture=800))
    check(70, 264, 11, v, m, plan="few")


@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m"),
    [
        (130, 2056, 9, 4), (200, 4104, 32, 8), (70, 136, 100, 4), (64, 40000, 64, 100), (330, 1032, 64, 16),
        (64, 2056, 300, 4), (20, 8, 40, 4),
    ],
)  # fmt: skip
def test_some_tokens(rows, cols, tokens, m, monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 4)  # clusters, and blocks of two heights
    dtype = torch.bfloat16 if tokens % 2 else torch.float16
    check(rows, cols, tokens, "all", m, dtype=dtype, activation=rows % 4, plan="some")


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "v", "m"),
    [
        (300, 528, 300, "all", 4), (256, 1400, 264, "all", 8), (512, 900, 130, 256, 8), (384, 2000, 72, 128, 16),
        (192, 1050, 300, 64, 8), (71, 130, 633, "all", 8), (64, 1600, 550, "all", 100), (256, 600, 33, 128, 8),
        (440, 300, 500, "all", 4), (443, 200, 500, "all", 4), (100, 200, 600, "all", 4),
    ],
)  # fmt: skip
def test_many_tokens(rows, cols, tokens, v, m, turned):
    dtype = torch.bfloat16 if rows == 300 else torch.float16
    check(rows, cols, tokens, v, m, turned=turned, dtype=dtype, activation=rows % 4, plan="many")
    three = {kind.call.launches[-1].run.macros["WM"] == 3 for kind in vnm_cuda._known.values() if kind.call}
    assert three == {m == 4 and rows >= 300}
