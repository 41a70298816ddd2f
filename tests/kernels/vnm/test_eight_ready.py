"""Products of activations in 8 bits: the kernel in the emulator, and the numbers of x quantized in a kernel."""

import pytest
import torch

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.vnm import eight_ready
from gossamer.kernels.vnm.eight import decode8, linear8, linear8_ready, pack8, quantize_by_torch
from gossamer.native.build import compiler
from tests.kernels.vnm.hopper import emulate

E4M3 = torch.float8_e4m3fn


def operands(rows, cols, tokens, m, dtype, element=torch.bfloat16):
    torch.manual_seed(rows + cols + tokens + m)
    dense = gs.sparsify(torch.randn(rows, cols), gs.VNM("all", 2, m), format=gs.Dense())
    packed = pack8(dense, m, dtype)
    return packed, torch.randn(tokens, cols).to(element), torch.randn(rows).to(element)


@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize(("rows", "cols", "tokens", "m"), [(70, 256, 5, 4), (64, 512, 3, 8), (20, 1024, 9, 16)])
def test_the_same_as_in_one_operator(rows, cols, tokens, m, dtype):
    (values, shared, meta, scale, sizes), x, bias = operands(rows, cols, tokens, m, dtype)
    x[0] = 0
    x[-1, :2] = torch.tensor([torch.inf, 1.0])  # inf may be in a column that nobody reads
    small, each = quantize_by_torch(x, shared, m, dtype)
    assert small.shape == (tokens, cols // m * 4) and small.dtype is dtype and each.dtype is torch.float32
    expected = linear8(values, shared, meta, scale, x, bias, *sizes, 0)
    got = torch.ops.gossamer.vnm_8bit_ready(values, meta, scale, small, each, bias, rows, 1)
    torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize(
    ("rows", "cols", "tokens", "m", "processors"),
    [(130, 1024, 1, 4, 132), (200, 512, 33, 8, 4), (64, 256, 64, 8, 132), (330, 2048, 16, 4, 2)],
)
def test_kernel(rows, cols, tokens, m, processors, dtype, monkeypatch):
    emulate(monkeypatch, eight_ready, processors)
    element = torch.float16 if tokens % 2 else torch.bfloat16
    (values, shared, meta, scale, _), x, bias = operands(rows, cols, tokens, m, dtype, element)
    small, each = quantize_by_torch(x, shared, m, dtype)
    out = eight_ready.KINDS.run(values, meta, scale, small, each, bias, rows, int(element is torch.bfloat16))
    assert len(eight_ready.KINDS._calls) == 1  # the kernel ran
    none = torch.empty(0, dtype=torch.uint8)
    a = decode8(values, none, meta, (rows, small.shape[1], 0, 4)).double() * scale.double()[:, None]
    b = small.double() * each.double()[:, None]
    exact = b @ a.t() + bias.double()
    unit = 2.0**-10 if element is torch.float16 else 2.0**-7
    bound = unit * exact.abs() + 2.0**-20 * (b.abs() @ a.abs().t() + bias.double().abs()) + 1e-6
    assert out.dtype is element and (out.double() - exact).abs().le(bound).all()


def test_what_it_does_not_take(monkeypatch):
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    assert eight_ready.most_tokens(4096, 0) == 0
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    assert eight_ready.most_tokens(14336, 0) == 64
    (values, shared, meta, scale, _), x, bias = operands(64, 256, 4, 4, E4M3)
    small, each = quantize_by_torch(x, shared, 4, E4M3)
    with pytest.raises(RuntimeError, match="4 of tokens"):
        eight_ready.decide(values, meta, scale, small, each[:3], bias, 64, 1)
    monkeypatch.setattr(eight_ready, "usable", lambda: True)
    assert eight_ready.prepare(values, meta, scale, small[:, :100], each, bias, 64, 1) is None
    assert eight_ready.prepare(values, meta, scale, small, each, bias, 64, 1) is not None


def test_torchs_rules():
    (values, shared, meta, scale, _), x, bias = operands(20, 256, 3, 8, torch.int8)
    small, each = quantize_by_torch(x, shared, 8, torch.int8)
    given = (values, meta, scale, small, each, bias, 20, 0)
    torch.library.opcheck(
        torch.ops.gossamer.vnm_8bit_ready.default, given, test_utils=("test_schema", "test_faketensor")
    )
    assert linear8_ready(*given).dtype is torch.float16
