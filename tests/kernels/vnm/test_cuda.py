"""The GPU's plan and its plain kernels, run on a CPU by tests/native/emulator.py: arguments, indices and edges."""

import struct

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
from gossamer.native.cuda.calls import Call
from tests.native import emulator

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")

SHAPES = [(1, 1), (64, 128), (70, 130), (129, 1030)]
CASES = [("all", 4), (16, 8), (3, 5), ("all", 100), (1, 16)]


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    monkeypatch.setattr(products, "function", emulator.function)
    monkeypatch.setattr(vnm_cuda, "usable", lambda: True)
    monkeypatch.setattr(products, "_ready", {})
    monkeypatch.setattr(vnm_cuda, "_known", {})
    monkeypatch.setattr(gpu, "capability", lambda device: (7, 5))
    monkeypatch.setattr(gpu, "processors", lambda device: 132)


def packed(rows, cols, v, m, dtype):
    dense = gs.sparsify(torch.randn(rows, cols).to(dtype), gs.VNM(v, 2, m), format=gs.Dense())
    weight = gs.from_dense(dense, PackedVNM(v, 2, m))
    return dense, weight.values(), vnm_of(weight.structure)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("v", "m"), CASES)
def test_any(v, m, dtype):
    bound = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 5e-2}
    for rows, cols in SHAPES:
        dense, values, (shared, meta, sizes) = packed(rows, cols, v, m, dtype)
        bias = torch.randn(rows).to(dtype)
        for x in (
            torch.randn(5, cols),
            torch.randn(cols, 6).t(),
            torch.randn(1, cols),
            torch.randn(3, 2 * cols)[:, ::2],
        ):
            x = x.to(dtype)
            out = vnm_cuda.linear(values, shared, meta, x, bias, *sizes, 2)
            assert {kind.plan for kind in vnm_cuda._known.values()} == {"any"}
            torch.testing.assert_close(out, F.gelu(F.linear(x.float(), dense.float(), bias.float())).to(dtype), **bound)
            assert out.stride(0) == 1 if vnm_cuda.feature_major(x) else out.is_contiguous()


def test_a_bias_with_gaps():
    dense, values, (shared, meta, sizes) = packed(70, 100, 3, 8, torch.float32)
    x, bias = torch.randn(5, 100), torch.randn(140)[::2]
    out = vnm_cuda.linear(values, shared, meta, x, bias, *sizes, 0)
    torch.testing.assert_close(out, F.linear(x, dense, bias), rtol=1e-4, atol=1e-4)


def test_inputs_of_more_dimensions_are_remembered_with_their_own_result(monkeypatch):
    dense, values, (shared, meta, sizes) = packed(70, 100, 3, 8, torch.float32)
    remembered = []
    monkeypatch.setattr(calls, "remember", lambda call, device: remembered.append(call))
    for shape in ((100,), (2, 3, 100), (2, 1, 3, 100)):
        x = torch.randn(shape)
        out = vnm_cuda.slow(values, shared, meta, x, None, *sizes, 0)
        torch.testing.assert_close(out, x @ dense.t(), rtol=1e-4, atol=1e-4)
        again = remembered[-1](values, shared, meta, x, None)
        assert torch.equal(again, out) and again.shape == out.shape and again.is_contiguous()
    count = len(remembered)
    for x in (torch.randn(3, 2, 100).transpose(0, 1), torch.randn(2, 0, 100)):  # copied first; nothing to launch
        out = vnm_cuda.slow(values, shared, meta, x, None, *sizes, 0)
        torch.testing.assert_close(out, x @ dense.t(), rtol=1e-4, atol=1e-4)
    assert len(remembered) == count


@pytest.mark.parametrize("activation", [0, 1, 2, 3])
def test_activations(activation):
    dense, values, (shared, meta, sizes) = packed(20, 40, 16, 8, torch.float32)
    x = torch.randn(4, 40)
    out = vnm_cuda.linear(values, shared, meta, x, None, *sizes, activation)
    torch.testing.assert_close(out, activated(x @ dense.t(), activation), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("v", "m"), CASES)
def test_decode_and_sample_undo_each_other(v, m, dtype):
    for rows, cols in SHAPES:
        dense, values, (shared, meta, sizes) = packed(rows, cols, v, m, dtype)
        assert torch.equal(vnm_cuda.decode(values, shared, meta, *sizes), dense)
        assert torch.equal(vnm_cuda.sample(dense, shared, meta, *sizes), values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compact_is_a_gather(dtype):
    for rows, cols, m in ((64, 128, 8), (10, 130, 5), (3, 1030, 100)):
        dense, values, (shared, meta, _) = packed(rows, cols, "all", m, dtype)
        x = torch.randn(7, cols).to(dtype)
        sizes = products.Sizes(rows, cols, 0, m, 7)
        compact = Call((products.compacted(sizes, x),), (products.compact_launch(sizes, x, -1, 5),))
        out = compact(values, shared, meta, x, None)
        groups = torch.arange(shared.shape[1])[:, None] * m
        at = (shared[0].long() + groups).reshape(-1)
        assert torch.equal(out, torch.where(at < cols, x[:, at.clamp(max=cols - 1)], 0))
        # the product is then an ordinary 2:4 one
        plain = vnm_cuda.decode(values, shared[:0].reshape(-1), meta, rows, out.shape[1], 0, 4)
        torch.testing.assert_close((out.double() @ plain.double().t()), x.double() @ dense.double().t())


def test_many_tokens_go_over_a_dense_copy():
    dense, values, (shared, meta, sizes) = packed(70, 130, 16, 8, torch.float32)
    bias = torch.randn(70)
    for x in (torch.randn(40, 130), torch.randn(130, 40).t()):
        out = vnm_cuda.linear(values, shared, meta, x, bias, *sizes, 1)
        torch.testing.assert_close(out, F.relu(F.linear(x, dense, bias)), rtol=1e-4, atol=1e-4)
        assert out.stride(0) == 1 if vnm_cuda.feature_major(x) else out.is_contiguous()


def test_no_tokens():
    _, values, (shared, meta, sizes) = packed(70, 130, 16, 8, torch.float32)
    assert vnm_cuda.linear(values, shared, meta, torch.randn(0, 130), None, *sizes, 0).shape == (0, 70)


@pytest.mark.parametrize(
    ("x", "bias", "message"),
    [
        (torch.zeros(2, 130).half(), None, "one dtype"),
        (torch.zeros(2, 130), torch.zeros(70).half(), "one dtype"),
        (torch.zeros(2, 130, device="meta"), None, "one device"),
        (torch.zeros(2, 131), None, "takes an input of tokens x 130"),
        (torch.zeros(2, 130), torch.zeros(71), "a bias of 70"),
    ],
)
def test_bad_input_is_said_so(x, bias, message):
    _, values, (shared, meta, sizes) = packed(70, 130, 16, 8, torch.float32)
    with pytest.raises(RuntimeError, match=message):
        vnm_cuda.linear(values, shared, meta, x, bias, *sizes, 0)


class Recorded:
    """Remembers what it was launched with; sums are left as they are."""

    def __init__(self):
        self.calls = []

    def __call__(self, source, name, device, parameters, *, shared=0, chained=False, **macros):
        def run(grid, threads, *arguments):
            struct.pack(f"@{parameters}", *arguments)
            self.calls.append((name, macros, grid, threads, arguments))

        if name in ("vnm_few", "vnm_some", "vnm_many"):
            return run
        return emulator.function(source, name, device, parameters, **macros)


@pytest.fixture
def hopper(monkeypatch):
    made = Recorded()
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    monkeypatch.setattr(gpu, "processors", lambda device: 132)
    monkeypatch.setattr(products, "function", made)
    monkeypatch.setattr(calls, "tensor_map", lambda *_: bytes(128))
    return made


def test_few_tokens_in_launches_of_16(hopper):
    _, values, (shared, meta, sizes) = packed(70, 136, 16, 8, torch.bfloat16)
    x, bias = torch.randn(38, 136).bfloat16(), torch.zeros(70).bfloat16()
    out = vnm_cuda.linear(values, shared, meta, x, bias, *sizes, 2)
    assert out.shape == (38, 70) and [a[13] for *_, a in hopper.calls] == [16, 16, 6]
    first, _, third = (a for *_, a in hopper.calls)
    assert first[:6] == tuple(t.data_ptr() for t in (values, meta, shared, x, out, bias))
    assert third[3:5] == (x[32:].data_ptr(), out[32:].data_ptr())
    assert first[6:] == (0, 0, 0, 70, 136, 8, 16, 16, 2, 272, 140)


@pytest.mark.parametrize(
    ("v", "m", "turned", "expected"),
    [
        ("all", 4, False, {"GATHER": 0, "X_TOKENS": 1, "Y_TOKENS": 1}),
        ("all", 4, True, {"GATHER": 0, "X_TOKENS": 0, "Y_TOKENS": 0}),
        ("all", 8, False, {"GATHER": 0, "X_TOKENS": 1, "Y_TOKENS": 1}),  # compacted first
        ("all", 8, True, {"GATHER": 1, "X_TOKENS": 0, "Y_TOKENS": 0}),
        (64, 8, False, {"GATHER": 1, "X_TOKENS": 0, "Y_TOKENS": 1}),  # transposed first
        (64, 8, True, {"GATHER": 1, "X_TOKENS": 0, "Y_TOKENS": 0}),
    ],
)
@pytest.mark.parametrize("tokens", [640, 643])
def test_many_tokens_in_every_order(hopper, v, m, turned, expected, tokens):
    _, values, (shared, meta, sizes) = packed(130, 132, v, m, torch.bfloat16)
    x = torch.randn(132, tokens).bfloat16().t() if turned else torch.randn(tokens, 132).bfloat16()
    out = vnm_cuda.linear(values, shared, meta, x, None, *sizes, 0)
    ((name, macros, _, _, arguments),) = hopper.calls
    assert name == "vnm_many" and {k: macros[k] for k in expected} == expected
    rows, cols, group, share, count, steps, ldx, ldy = arguments[8:16]
    compacted = v == "all" and m == 8 and not turned
    assert (rows, cols, group, count) == (130, steps * 64 if compacted else 132, 4 if compacted else m, tokens)
    assert steps == -(-132 // (16 * m)) and share == (1 << 30 if v == "all" else v)
    assert ldx % 16 == 0 and arguments[3] % 16 == 0
    assert ldy == 2 * (out.stride(1) if turned else out.stride(0)) and out.shape == (tokens, 130)
    assert out.stride(0) == 1 if turned else out.is_contiguous()


@pytest.mark.parametrize(("v", "first"), [("all", {"X_TOKENS": 1}), (64, {"X_TOKENS": 0})])
def test_the_result_in_another_order_than_the_input(hopper, v, first):
    _, values, (shared, meta, sizes) = packed(128, 128, v, 8, torch.bfloat16)
    x = torch.randn(40, 128).bfloat16()
    out = vnm_cuda.linear(values, shared, meta, x, None, *sizes, 0, True)
    assert out.stride() == (1, 40) and hopper.calls[-1][1]["Y_TOKENS"] == 0
    assert {k: hopper.calls[-1][1][k] for k in first} == first
    back = vnm_cuda.linear(values, shared, meta, out, None, *sizes, 0, False)
    assert back.is_contiguous() and hopper.calls[-1][1]["Y_TOKENS"] == 1 and hopper.calls[-1][1]["X_TOKENS"] == 0


@pytest.mark.parametrize("turned", [True, False])
def test_plain_kernels_in_another_order(turned):
    dense, values, (shared, meta, sizes) = packed(70, 130, 16, 8, torch.float32)
    for tokens in (5, 40):
        for x in (torch.randn(tokens, 130), torch.randn(130, tokens).t()):
            out = vnm_cuda.linear(values, shared, meta, x, None, *sizes, 0, turned)
            torch.testing.assert_close(out, x @ dense.t(), rtol=1e-4, atol=1e-4)
            assert (out.stride(0) == 1) == turned


@pytest.mark.parametrize("tokens", [3, 40])
def test_what_is_not_aligned_is_copied(hopper, tokens):
    _, values, (shared, meta, sizes) = packed(64, 136, 64, 8, torch.bfloat16)
    odd = torch.zeros(values.numel() + 1).bfloat16()[1:].copy_(values)
    wide = torch.randn(tokens, 300).bfloat16()
    for x in (wide[:, 1:137], wide[:, ::2][:, :136], wide[:1, :136].expand(tokens, 136)):
        vnm_cuda.linear(odd, shared, meta, x, None, *sizes, 0)
        arguments = hopper.calls[-1][-1]
        line = arguments[15 if tokens == 3 else 14]
        assert not any(pointer % 16 for pointer in arguments[:4]) and line % 16 == 0 and line >= 80
