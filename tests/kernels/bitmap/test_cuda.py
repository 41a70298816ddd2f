"""The bitmap kernel, run on a CPU by tests/native/emulator.py."""

import functools

import pytest
import torch
import torch.nn.functional as F

from gossamer.kernels import gpu
from gossamer.kernels.bitmap import cuda as bitmap_cuda
from gossamer.kernels.bitmap import plan
from gossamer.kernels.bitmap.operators import pack_bitmap
from gossamer.kernels.product import activated
from gossamer.kernels.vnm import products
from gossamer.native.build import compiler
from gossamer.native.cuda import calls
from tests.kernels.vnm.hopper import emulate
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")


def check(rows, cols, tokens, sparsity, element=torch.float16):
    torch.manual_seed(rows + cols)
    dense = (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).to(element)
    values, (bits, pos, sizes) = pack_bitmap(dense)
    x, bias, activation = torch.randn(tokens, cols).to(element), torch.randn(rows).to(element), rows % 4
    out = bitmap_cuda.KINDS.run(values, bits, pos, x, bias, *sizes, activation)
    exact = activated(F.linear(x.double(), dense.double(), bias.double()), activation)
    unit = 2.0**-10 if element is torch.float16 else 2.0**-7
    bound = unit * exact.abs() + 2.0**-20 * F.linear(x.double().abs(), dense.double().abs(), bias.double().abs()) + 1e-6
    assert (out.double() - exact).abs().le(bound).all()


@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "sparsity"),
    [
        (64, 64, 1, 0.5), (70, 1000, 8, 0.8), (1100, 600, 16, 0.6), (1, 1, 3, 0.0), (64, 1111, 32, 0.9),
        (130, 640, 24, 0.3), (64, 200, 2, 1.0), (200, 4100, 9, 0.7), (140, 700, 31, 0.6), (200, 2300, 64, 0.5),
        (100, 300, 40, 0.0), (17, 2049, 5, 0.8), (800, 260, 60, 0.7),
    ],
)  # fmt: skip
def test_products(rows, cols, tokens, sparsity, monkeypatch):
    emulate(monkeypatch, bitmap_cuda, 8)
    check(rows, cols, tokens, sparsity, torch.bfloat16 if tokens % 2 else torch.float16)


def every_set():
    """16 strips: each group of each lane has each set of places in one of them."""
    row, group = torch.arange(256)[:, None], torch.arange(48)
    kept = (row // 16 + row * 5 + group * 3 + group // 16) % 16
    return torch.randn(256, 192) * (kept[:, :, None] >> torch.arange(4) & 1).view(256, 192)


def test_every_set_of_places_in_every_lane(monkeypatch):
    emulate(monkeypatch, bitmap_cuda, 8)
    dense = every_set().half()
    values, (bits, pos, sizes) = pack_bitmap(dense)
    assert torch.equal(bitmap_cuda.dense_of(values, bits, pos, 256, 192), dense)
    x = torch.eye(192).half()
    for tokens in x.split(48):  # one column at a time: nothing is added up
        out = bitmap_cuda.KINDS.run(values, bits, pos, tokens, None, *sizes, 0)
        assert torch.equal(out, F.linear(tokens, dense))


@pytest.mark.parametrize("tokens", [7, 30])
def test_a_warp_with_many_pieces_looks_ahead_again(tokens, monkeypatch):
    emulate(monkeypatch, bitmap_cuda, 4)
    monkeypatch.setattr(plan, "WARPS", 2)
    check(1500, 390, tokens, 0.7)


def test_the_gpu_before(monkeypatch):
    emulate(monkeypatch, bitmap_cuda)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 0))
    monkeypatch.setattr(products, "function", functools.partial(emulator.function, architecture=800))
    check(70, 1032, 11, 0.6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (64, 64), (70, 1000), (130, 129)])
def test_many_tokens_go_over_a_dense_copy(rows, cols, dtype, monkeypatch):
    emulate(monkeypatch, bitmap_cuda)
    dense = (torch.randn(rows, cols) * (torch.rand(rows, cols) < 0.5)).to(dtype)
    values, (bits, pos, sizes) = pack_bitmap(dense)
    assert torch.equal(bitmap_cuda.dense_of(values, bits, pos, rows, cols), dense)
    x = torch.randn(70, cols).to(dtype)
    out = bitmap_cuda.KINDS.run(values, bits, pos, x, None, *sizes, 1)
    assert torch.equal(out, F.relu(F.linear(x, dense)))


def test_a_call_that_must_be_prepared_is_not_remembered(monkeypatch):
    emulate(monkeypatch, bitmap_cuda)
    remembered = []
    monkeypatch.setattr(calls, "remember", lambda call, device: remembered.append(call))
    values, (bits, pos, sizes) = pack_bitmap(torch.randn(64, 64).half())
    x = torch.randn(64, 3).half()
    bitmap_cuda.KINDS.slow(values, bits, pos, x.t(), None, *sizes, 0)
    assert not remembered
    bitmap_cuda.KINDS.slow(values, bits, pos, x.t().contiguous(), None, *sizes, 0)
    assert len(remembered) == 1


def test_reasons(monkeypatch):
    emulate(monkeypatch, bitmap_cuda)
    x = torch.zeros(2, 8).half()
    assert bitmap_cuda.takes(x, x) is None
    assert "float16" in bitmap_cuda.takes(x, x.bfloat16())
    assert "64 tokens" in bitmap_cuda.takes(x, torch.zeros(65, 8).half())
