"""Kernels for operands of 8 bits, run on a CPU by tests/native/emulator.py."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.product import activated
from gossamer.kernels.vnm import eight_cuda
from gossamer.kernels.vnm.eight import decode8, pack8, quantize
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
E4M3 = torch.float8_e4m3fn


def check(rows, cols, tokens, m, dtype, element=torch.float16, activation=0):
    torch.manual_seed(rows + cols + tokens)
    dense = gs.sparsify(torch.randn(rows, cols).to(element), gs.VNM("all", 2, m), format=gs.Dense())
    values, shared, meta, scale, sizes = pack8(dense, m, dtype)
    x, bias = torch.randn(tokens, cols).to(element), torch.randn(rows).to(element)
    out = eight_cuda.KINDS.run(values, shared, meta, scale, x, bias, *sizes, activation)
    small, each = quantize(x, shared, cols, m, dtype)
    a, b = (
        decode8(values, shared, meta, sizes).double() * scale.double()[:, None],
        small.double() * each.double()[:, None],
    )
    exact = activated(b @ a.t() + bias.double(), activation)
    unit = 2.0**-10 if element is torch.float16 else 2.0**-7
    bound = unit * exact.abs() + 2.0**-20 * (b.abs() @ a.abs().t() + bias.double().abs()) + 1e-6
    assert (out.double() - exact).abs().le(bound).all()


@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m"),
    [(130, 2056, 1, 4), (200, 1100, 32, 8), (70, 137, 40, 4), (64, 4000, 64, 100), (330, 520, 128, 16), (20, 8, 9, 4)],
)
def test_some_tokens(rows, cols, tokens, m, dtype, monkeypatch):
    emulate(monkeypatch, eight_cuda, 4)
    check(rows, cols, tokens, m, dtype, torch.bfloat16 if tokens % 2 else torch.float16, tokens % 4)


@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m"), [(300, 528, 600, 4), (256, 900, 264, 8), (71, 260, 633, 8), (440, 300, 520, 4)]
)
def test_many_tokens(rows, cols, tokens, m, dtype, monkeypatch):
    emulate(monkeypatch, eight_cuda)
    check(rows, cols, tokens, m, dtype, activation=rows % 4)


def test_orders_of_x(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    packed = pack8(gs.sparsify(torch.randn(64, 96).half(), gs.VNM("all", 2, 8), format=gs.Dense()), 8)
    x = torch.randn(5, 96).half()
    wide = torch.zeros(5, 200).half()
    wide[:, 1:97] = x
    run = eight_cuda.KINDS.run
    expected = run(*packed[:4], x, None, *packed.sizes, 0)
    for given in (x.t().contiguous().t(), wide[:, 1:97]):
        assert torch.equal(run(*packed[:4], given, None, *packed.sizes, 0), expected)
    assert run(*packed[:4], x[:0], None, *packed.sizes, 0).shape == (0, 64)


def test_zeros_and_what_is_not_finite(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    packed = pack8(gs.sparsify(torch.randn(64, 96).half(), "2:4", format=gs.Dense()), 4)
    x = torch.zeros(3, 96).half()
    x[1, 5], x[2, 0] = torch.inf, torch.nan
    out = eight_cuda.KINDS.run(*packed[:4], x, None, *packed.sizes, 0)
    assert bool((out[0] == 0).all()) and bool(out[1:].isnan().all())


def test_reasons(monkeypatch):
    emulate(monkeypatch, eight_cuda)
    values, x = torch.zeros(8).to(E4M3), torch.zeros(2, 8).half()
    assert eight_cuda.takes(values, x, 8, 0) is None
    assert "float16 or bfloat16" in eight_cuda.takes(values, x.float(), 8, 0)
    assert "float8_e4m3fn or int8" in eight_cuda.takes(x, x, 8, 0)
    assert 'v is "all"' in eight_cuda.takes(values, x, 8, 64)
    assert "columns" in eight_cuda.takes(values, x, 0, 0)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    assert "9.0, not compute capability 8.9" in eight_cuda.takes(values, x, 8, 0)
    packed = pack8(torch.zeros(64, 96), 4)
    with pytest.raises(RuntimeError, match="no 8-bit kernel"):
        eight_cuda.KINDS.run(*packed[:4], torch.zeros(2, 96).half(), None, *packed.sizes, 0)
    with pytest.raises(RuntimeError, match="expected a bias"):
        eight_cuda.KINDS.run(*packed[:3], packed.scale.half(), torch.zeros(2, 96).half(), None, *packed.sizes, 0)
