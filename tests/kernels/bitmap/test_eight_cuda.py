"""The bitmap kernel for e4m3, run on a CPU by tests/native/emulator.py."""

import pytest
import torch
import torch.nn.functional as F

from gossamer.kernels import gpu
from gossamer.kernels.bitmap import eight_cuda, plan
from gossamer.kernels.bitmap.eight import pack_bitmap8
from gossamer.kernels.bitmap.planes import unpack_planes
from gossamer.kernels.product import activated
from gossamer.kernels.vnm.eight import quantize
from gossamer.native.build import compiler
from gossamer.native.cuda import calls
from tests.kernels.vnm.hopper import emulate

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
E4M3 = torch.float8_e4m3fn


def check(rows, cols, tokens, sparsity, element=torch.float16):
    torch.manual_seed(rows + cols)
    dense = torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)
    dense[:: max(rows // 3, 2)] = 0
    packed = pack_bitmap8(dense)
    x, bias, activation = torch.randn(tokens, cols).to(element), torch.randn(rows).to(element), rows % 4
    out = eight_cuda.KINDS.run(*packed[:4], x, bias, *packed.sizes, activation)
    small, each = quantize(x, None, cols, 4, E4M3)
    a = unpack_planes(*packed[:3], rows, cols).double() * packed.scale.double()[:, None]
    b = small.double() * each.double()[:, None]
    exact = activated(F.linear(b, a, bias.double()), activation)
    unit = 2.0**-10 if element is torch.float16 else 2.0**-7
    bound = unit * exact.abs() + 2.0**-20 * F.linear(b.abs(), a.abs(), bias.double().abs()) + 1e-6
    assert out.dtype is element and (out.double() - exact).abs().le(bound).all()


@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "sparsity"),
    [
        (64, 64, 1, 0.5), (70, 1000, 8, 0.8), (1100, 600, 16, 0.6), (1, 1, 3, 0.0), (64, 1111, 32, 0.9),
        (130, 640, 24, 0.3), (64, 200, 2, 1.0), (200, 4100, 9, 0.7), (140, 700, 31, 0.6), (200, 2300, 64, 0.5),
        (100, 300, 40, 0.0), (17, 2049, 5, 0.8), (800, 260, 60, 0.7), (1, 2000, 4, 0.5), (500, 1, 7, 0.2),
    ],
)  # fmt: skip
def test_products(rows, cols, tokens, sparsity, monkeypatch):
    emulate(monkeypatch, eight_cuda, 8)
    check(rows, cols, tokens, sparsity, torch.bfloat16 if tokens % 2 else torch.float16)


@pytest.mark.parametrize("tokens", [7, 30])
def test_a_warp_with_many_pieces_looks_ahead_again(tokens, monkeypatch):
    emulate(monkeypatch, eight_cuda, 4)
    monkeypatch.setattr(plan, "WARPS", 2)
    check(1500, 390, tokens, 0.7)


@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (64, 64), (70, 1000), (130, 129)])
@pytest.mark.parametrize("sparsity", [0.0, 0.5, 1.0])
def test_a_dense_copy(rows, cols, sparsity, monkeypatch):
    emulate(monkeypatch, eight_cuda)
    dense = (torch.randn(rows, cols) * (torch.rand(rows, cols) >= sparsity)).to(E4M3)
    planes = pack_bitmap8(dense.float())[:3]
    expected = unpack_planes(*planes, rows, cols)
    assert torch.equal(eight_cuda.dense_of(*planes, rows, cols).view(torch.int8), expected.view(torch.int8))


def test_many_tokens_and_none(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    packed = pack_bitmap8(torch.randn(70, 96))
    x = torch.randn(70, 96).half()
    out = eight_cuda.KINDS.run(*packed[:4], x, None, *packed.sizes, 1)
    torch.testing.assert_close(out[:64], eight_cuda.KINDS.run(*packed[:4], x[:64], None, *packed.sizes, 1))
    assert eight_cuda.KINDS.run(*packed[:4], x[:0], None, *packed.sizes, 0).shape == (0, 70)


def test_orders_of_x_and_what_is_not_finite(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    packed = pack_bitmap8(torch.randn(64, 96))
    x = torch.randn(5, 96).half()
    wide = torch.zeros(5, 200).half()
    wide[:, 1:97] = x
    expected = eight_cuda.KINDS.run(*packed[:4], x, None, *packed.sizes, 0)
    for given in (x.t().contiguous().t(), wide[:, 1:97]):
        assert torch.equal(eight_cuda.KINDS.run(*packed[:4], given, None, *packed.sizes, 0), expected)
    x[0], x[1, 5], x[2, 0] = 0, torch.inf, torch.nan
    out = eight_cuda.KINDS.run(*packed[:4], x, None, *packed.sizes, 0)
    assert bool((out[0] == 0).all()) and bool(out[1:3].isnan().all()) and torch.equal(out[3:], expected[3:])


def test_a_call_that_must_be_prepared_is_not_remembered(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    remembered = []
    monkeypatch.setattr(calls, "remember", lambda call, device: remembered.append(call))
    packed, x = pack_bitmap8(torch.randn(64, 64)), torch.randn(64, 3).half()
    eight_cuda.KINDS.slow(*packed[:4], x.t(), None, *packed.sizes, 0)
    assert not remembered
    eight_cuda.KINDS.slow(*packed[:4], x.t().contiguous(), None, *packed.sizes, 0)
    assert len(remembered) == 1


def test_reasons_and_wrong_operands(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    values, x = torch.zeros(1, 1024).to(E4M3), torch.zeros(2, 8).half()
    assert eight_cuda.takes(values, x, 8) is None
    assert "float16 or bfloat16" in eight_cuda.takes(values, x.float(), 8)
    assert "float8_e4m3fn" in eight_cuda.takes(x, x, 8)
    assert "64 tokens" in eight_cuda.takes(values, torch.zeros(65, 8).half(), 8)
    assert "columns" in eight_cuda.takes(values, x, 10**6)
    packed = pack_bitmap8(torch.randn(64, 8))
    with pytest.raises(RuntimeError, match="takes an input"):
        eight_cuda.decide(*packed[:4], torch.zeros(2, 9).half(), None, *packed.sizes, 0)
    with pytest.raises(RuntimeError, match="scales"):
        eight_cuda.decide(*packed[:3], packed.scale[1:], x, None, *packed.sizes, 0)
    with pytest.raises(RuntimeError, match="no 8-bit bitmap kernel"):
        eight_cuda.decide(*packed[:4], x.float(), None, *packed.sizes, 0)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    assert "9.0" in eight_cuda.takes(values, x, 8)
