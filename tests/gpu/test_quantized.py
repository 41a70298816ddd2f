"""Quantized layers and bitmaps on a GPU: against the decoded weight, packed, compiled, in CUDA graphs, moved."""

import copy

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer.formats import PackedBitmap
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.linear import quantized_linear
from gossamer.kernels.quantized.weight import decoded, quantized
from gossamer.models.pack import tune as pack_tune
from gossamer.models.quantized import QuantizedLinear

pytestmark = pytest.mark.gpu

LAYOUTS = [Layout("fp8"), Layout("int8"), Layout("fp8", "all", 4), Layout("fp8", "all", 8), Layout("int8", "all", 8),
           Layout("fp8", 64, 8, True), Layout("int4", "all", 4, True), Layout("int4", 64, 8, True),
           Layout("fp8", bitmap=True)]  # fmt: skip


@pytest.fixture(autouse=True)
def measured_anew(monkeypatch, tmp_path):
    monkeypatch.setattr(pack_tune, "_file", lambda: tmp_path / "pack.json")


def weight(rows, cols, layout):
    dense = torch.randn(rows, cols, device="cuda").bfloat16()
    if layout.bitmap:
        return gs.sparsify(dense, "60%", format=gs.Dense())
    return gs.sparsify(dense, gs.VNM(layout.v, 2, layout.m), format=gs.Dense()) if layout.m else dense


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_close_to_the_decoded_weight(layout, dtype):
    for rows, cols in ((512, 1024), (328, 520), (40, 72)):
        arrays = quantized(weight(rows, cols, layout), layout)
        bias, exact = torch.randn(rows, device="cuda"), decoded(arrays, layout, (rows, cols))
        for tokens in (1, 7, 16, 40, 130, 600):
            x = torch.randn(tokens, cols, device="cuda").to(dtype)
            out = quantized_linear(x, arrays, layout, (rows, cols), bias)
            expected = x.float() @ exact.t() + bias
            assert out.dtype is dtype
            error = float((out.float() - expected).norm() / expected.norm())
            assert error < (0.01 if layout.weights_only else 0.05), (rows, cols, tokens, error)


@pytest.mark.parametrize(
    ("how", "pattern"), [("fp8", None), ("fp8", "2:4"), ("fp8", gs.VNM("all", 2, 8)), ("int8", "2:4"), ("int4", "2:4")]
)
def test_packed_captured_and_copied(how, pattern):
    model = nn.Sequential(nn.Linear(1024, 2048), nn.SiLU(), nn.Linear(2048, 512)).cuda().bfloat16().eval()
    if pattern is not None:
        gs.sparsify_(model, pattern)
    x = torch.randn(24, 1024, device="cuda").bfloat16()
    with torch.no_grad():
        before = model(x)
        gs.quantize_(model, how)
        assert all(isinstance(model[i], QuantizedLinear) for i in (0, 2))
        small = model(x)
        scale = float(before.float().norm())
        assert float((small - before).float().norm()) < (0.25 if how == "int4" else 0.08) * scale
        report = gs.pack_(model, [x, (x[:1], 10)])
        assert [row.tokens for row in report.layers] == [(1, 24)] * 2 and len(report.examples) == 2
        packed = model(x)
        assert float((packed - small).float().norm()) < 0.03 * scale
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.testing.assert_close(out, model(x))
        torch.testing.assert_close(copy.deepcopy(model)(x), out)
        there = copy.deepcopy(model).cpu()
        error = float((there(x.cpu()).cuda() - out).float().norm() / out.float().norm())
        assert error < 0.02 and torch.equal(there.cuda()(x), out)


def test_bad_tokens():
    for pattern in (None, "2:4"):
        model = nn.Sequential(nn.Linear(256, 128)).cuda().bfloat16()
        small = gs.quantize_(model if pattern is None else gs.sparsify_(model, pattern), "fp8")
        x = torch.zeros(3, 256, device="cuda").bfloat16()
        x[1, 0], x[2] = torch.inf, 1e30
        with torch.no_grad():
            out = small(x)
        assert torch.equal(out[0], small[0].bias) and bool(out[1].isnan().all()) and bool(out[2].isfinite().all())


def test_pack_tries_bitmaps():
    layer = gs.sparsify_(nn.Linear(4096, 8192).cuda().bfloat16(), "85%")
    dense, x = gs.densify_(copy.deepcopy(layer)), torch.randn(8, 4096, device="cuda").bfloat16()
    gs.pack_(layer, x)
    assert layer.weight.format == PackedBitmap()
    for tokens in (1, 8, 32, 100):
        x = torch.randn(tokens, 4096, device="cuda").bfloat16()
        with torch.no_grad():
            torch.testing.assert_close(layer(x), dense(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("percent", [0, 50, 80, 100])
def test_bitmaps_of_fp8_are_right_and_captured(percent):
    layer = nn.Linear(1030, 520).cuda().bfloat16()
    if percent:
        gs.sparsify_(layer, f"{percent}%", format=gs.Masked())
    layer = gs.quantize_(nn.Sequential(layer), "fp8")[0]
    expected = layer.weight
    layer.repack(Layout("fp8", bitmap=True))
    assert torch.equal(layer.weight, expected)
    for tokens in (1, 8, 9, 16, 31, 64, 65):
        x = torch.randn(tokens, 1030, device="cuda").bfloat16()
        with torch.no_grad():
            out = layer(x)
            small, scale = torch.ops.gossamer.quantize_8bit(x, False)
            exact = (small[:, :1030].double() * scale.double()[:, None]) @ expected.double().t() + layer.bias.double()
            torch.testing.assert_close(out.double(), exact, rtol=2e-2, atol=2e-2)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                again = layer(x)
            graph.replay()
        if tokens <= 64:
            assert torch.equal(again, out)


def test_pack_measures_bitmaps_of_fp8():
    layer = gs.sparsify_(nn.Sequential(nn.Linear(4096, 14336)).cuda().bfloat16(), "80%")
    small, x = gs.quantize_(layer, "fp8"), torch.randn(8, 4096, device="cuda").bfloat16()
    with torch.no_grad():
        expected = small(x)
        report = gs.pack_(small, x)
        print(report)
        torch.testing.assert_close(small(x), expected, rtol=2e-2, atol=2e-2)


class Gated(nn.Module):
    """Two layers that read the same input, and one that reads what comes of it."""

    def __init__(self):
        super().__init__()
        self.gate, self.up = (nn.Linear(512, 1024, bias=False) for _ in range(2))
        self.down = nn.Linear(1024, 512, bias=False)

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("pattern", [None, "2:4"])
def test_pack_groups_layers_of_one_input(pattern):
    model = Gated().cuda().bfloat16().eval()
    gs.quantize_(model if pattern is None else gs.sparsify_(model, pattern), "fp8")
    with torch.no_grad():
        for tokens in (1, 16, 600):
            x = torch.randn(tokens, 512, device="cuda").bfloat16()
            model.gate.ungroup(), model.up.ungroup()
            expected = model(x)
            gs.pack_(model, x)
            if model.gate.layout != model.up.layout:
                continue  # other programs disturbed what pack_ measures
            if model.gate.layout.m:
                assert "forward" in model.__dict__  # one kernel for both products and what follows them
            else:
                assert model.gate._group[0] is model.up._group[0]
            torch.testing.assert_close(model(x), expected, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("how", ["fp8", "bitmap", "int4"])
def test_compiled(how):
    model = Gated().cuda().bfloat16().eval()
    gs.sparsify_(model, "80%" if how == "bitmap" else "2:4", format=PackedBitmap() if how == "bitmap" else gs.Masked())
    x = torch.randn(16, 512, device="cuda").bfloat16()
    with torch.no_grad():
        if how != "bitmap":
            gs.nn.group_(gs.quantize_(model, how), x)
        expected, compiled = model(x), torch.compile(model, mode="reduce-overhead", fullgraph=True)
        for _ in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(x)
        torch.testing.assert_close(out, expected, rtol=3e-2, atol=3e-2)
