"""Layers in FP8, INT8 and INT4: the error against its bound, gradients, copies, files, other types and layouts."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import nn

import gossamer as gs
from gossamer.kernels import gpu
from gossamer.kernels.quantized.layout import Layout
from gossamer.models.quantized import QuantizedLinear, read_format
from tests.hf.models import bert, gpt2, inputs

CASES = [("fp8", None), ("fp8", "2:4"), ("fp8", gs.VNM("all", 2, 8)), ("fp8", gs.VNM(64, 2, 8)), ("fp8", "60%"),
         ("int4", "2:4"), ("int4", gs.VNM(64, 2, 8))]  # fmt: skip


def network(how: Any = "2:4", dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(160, 128), nn.GELU(), nn.Linear(128, 80)).to(dtype)
    return model if how is None else gs.sparsify_(model, how)  # type: ignore[return-value]


def stored(model: nn.Module) -> nn.Module:
    torch.save(model, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("how", "pattern"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_error_is_within_its_bound(how: Any, pattern: Any, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(160, 128).to(dtype)
    if pattern is not None:
        gs.sparsify_(layer, pattern)
    x = torch.randn(9, 160).to(dtype)
    with torch.no_grad():
        weight, bias = layer.weight.to_dense().double() if pattern else layer.weight.double(), layer.bias.double()
        small = gs.quantize_(nn.Sequential(layer), how)[0]
        out = small(x)
    assert out.dtype is dtype and isinstance(small, QuantizedLinear) and small.dtype is dtype
    exact = x.double() @ weight.t() + bias
    # e4m3: half a unit of 4 digits, and half of the smallest number of the row; int4: half a scale of its columns
    if how == "fp8":
        off = weight.abs() / 16 + small.scale.double()[:, None] * 2**-10 * (weight != 0)
    else:
        most = small.scale.double().amax(0)[:128, None]
        off = (most / 2 + weight.abs() * 2**-7) * (weight != 0)
    assert bool(((small.weight.double() - weight).abs() <= off * 1.02 + weight.abs() * 2**-8).all())
    moved = 0.0 if how == "int4" else x.double().abs() / 16 + x.double().abs().amax(1)[:, None] / 448 * 2**-10
    bound = x.double().abs() @ off.t() + (moved @ (weight.abs() + off).t() if how == "fp8" else 0)
    unit = torch.finfo(dtype).eps
    bound = bound * 1.02 + unit * (exact.abs() + 160 * (x.double().abs() @ weight.abs().t()) * 2**-8)
    assert bool(((out.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize(("how", "pattern"), CASES, ids=str)
def test_copied_saved_and_loaded(how: Any, pattern: Any, tmp_path: Path) -> None:
    model, x = gs.quantize_(network(pattern), how), torch.randn(5, 160)
    expected = model(x)
    for other in (copy.deepcopy(model), stored(model)):
        assert torch.equal(other(x), expected)
    other = gs.quantize_(network(None), "fp8")
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x), expected) and repr(other) == repr(model)
    gs.save(model, tmp_path / "small.safetensors")
    with torch.device("meta"):
        fresh = network(None)
    for target in (fresh, network(None), gs.quantize_(network(None), "int8"), gs.quantize_(network("2:4"), "fp8")):
        loaded = gs.load(target, tmp_path / "small.safetensors")
        assert torch.equal(loaded(x), expected) and repr(loaded) == repr(model)
    dense = gs.densify_(copy.deepcopy(model))
    assert type(dense[0]) is nn.Linear
    torch.testing.assert_close(dense(x), expected, rtol=0.2, atol=0.2 * float(expected.abs().max()))


def bitmaps(pattern: Any = "60%") -> Any:
    model = gs.quantize_(network(pattern), "fp8")
    for layer in (model[0], model[2]):
        layer.repack(Layout("fp8", bitmap=True))
    return model


def test_bitmaps_have_the_same_numbers_everywhere(tmp_path: Path) -> None:
    dense, model, x = gs.quantize_(network("60%"), "fp8"), bitmaps(), torch.randn(5, 160)
    expected = model(x)
    torch.testing.assert_close(expected, dense(x))
    assert "fp8 bitmap" in repr(model[0]) and model[0].nnz == int((dense[0].weight != 0).sum())
    assert model[0].nbytes == sum(t.nbytes for t in model[0].arrays) and torch.equal(model[0].weight, dense[0].weight)
    for other in (copy.deepcopy(model), stored(model)):
        assert torch.equal(other(x), expected)
    for other in (network(None), gs.quantize_(network(None), "fp8"), gs.quantize_(network("2:4"), "int8")):
        if isinstance(other[0], QuantizedLinear):
            other.load_state_dict(model.state_dict())
            assert torch.equal(other(x), expected) and repr(other) == repr(model)
        gs.save(model, tmp_path / "small.safetensors")
        loaded = gs.load(other, tmp_path / "small.safetensors")
        assert torch.equal(loaded(x), expected) and repr(loaded) == repr(model)
    half = copy.deepcopy(model).half().bfloat16()
    for part in ("values", "shared", "meta"):
        assert torch.equal(getattr(half[0], part).view(torch.uint8), getattr(model[0], part).view(torch.uint8))
    model[0].repack(Layout("fp8"))
    assert torch.equal(model[0].values.view(torch.int8), dense[0].values.view(torch.int8))
    assert torch.equal(gs.densify_(bitmaps())[0].weight, dense[0].weight)


def test_bitmaps_of_other_gpus_become_dense(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = bitmaps()[0]
    text = str(layer.explain(torch.ones(1, 160)))
    assert "fp8 bitmap" in text and "GPU" in text
    monkeypatch.setattr(QuantizedLinear, "device", torch.device("cuda"))
    monkeypatch.setattr(gpu, "capability", lambda device: (9, 0))
    layer.suit_device()
    assert layer.layout.bitmap and "bitmap_8bit" in str(layer.explain(torch.ones(64, 160)))
    assert "torch._scaled_mm" in str(layer.explain(torch.ones(65, 160)))
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    layer.suit_device()
    assert layer.layout == Layout("fp8")


def test_broken_bitmaps_are_refused(tmp_path: Path) -> None:
    model, other = bitmaps(), gs.quantize_(network(), "fp8")
    state, expected = model.state_dict(), other(torch.ones(1, 160))
    for name, tensor, said in (
        ("0.values", state["0.values"].view(torch.int8), "float8"),
        ("0.values", state["0.values"][:-1], "values"),
        ("0.values", state["0.values"].t(), "values"),
        ("0.meta", torch.zeros_like(state["0.meta"]), "twice"),
        ("0.meta", state["0.meta"][:-1], "words of bits"),
        ("0.shared", state["0.shared"] * 2, "places"),
        ("0.shared", state["0.shared"].long(), "int32"),
        ("0.scale", torch.ones(127), "scales"),
        ("0.format", torch.tensor(list(b"int8 bitmap, float32"), dtype=torch.uint8), "no layout"),
    ):
        with pytest.raises(ValueError, match=said):
            other.load_state_dict(state | {name: tensor})
        gs.save(state | {name: tensor.contiguous()}, tmp_path / "bad.safetensors")
        target = network(None)
        with pytest.raises(ValueError, match=said):
            gs.load(target, tmp_path / "bad.safetensors")
        assert type(target[0]) is nn.Linear
    assert torch.equal(other(torch.ones(1, 160)), expected)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    model = gs.quantize_(network(), "fp8")
    state, other = model.state_dict(), gs.quantize_(network(), "fp8")
    expected = other(torch.ones(1, 160))
    for name, tensor, said in (
        ("0.scale", torch.zeros(128), "more than 0"),
        ("0.scale", torch.full((128,), torch.nan), "finite"),
        ("0.scale", torch.ones(127), "scales"),
        ("0.values", state["0.values"].view(torch.int8), "float8"),
        ("0.values", state["0.values"][:-1], "values"),
        ("0.meta", torch.zeros_like(state["0.meta"]), "ascend"),
        ("0.format", torch.tensor(list(b"fp7 2:4, float32"), dtype=torch.uint8), "no layout"),
        ("0.format", torch.tensor(list(b"fp8 2:4, complex64"), dtype=torch.uint8), "complex64"),
        ("0.format", torch.zeros(1000, dtype=torch.uint8), "short text"),
    ):
        with pytest.raises(ValueError, match=said):
            other.load_state_dict(state | {name: tensor})
        gs.save(state | {name: tensor}, tmp_path / "bad.safetensors")
        target = network(None)
        with pytest.raises(ValueError, match=said):
            gs.load(target, tmp_path / "bad.safetensors")
        assert type(target[0]) is nn.Linear  # as it was
    assert torch.equal(other(torch.ones(1, 160)), expected)
    wrong = nn.Sequential(nn.Linear(160, 192), nn.GELU(), nn.Linear(192, 80))
    gs.save(model, tmp_path / "good.safetensors")
    with pytest.raises(ValueError, match="192"):
        gs.load(wrong, tmp_path / "good.safetensors")


def test_moving_a_model_keeps_its_numbers() -> None:
    model, x = gs.quantize_(network(), "fp8"), torch.randn(3, 160)
    arrays = [name for name in model.state_dict() if not name.endswith(("bias", "format"))]
    before = {name: model.state_dict()[name].clone() for name in arrays}
    half = model.half().bfloat16()
    assert all(torch.equal(half.state_dict()[n].view(torch.uint8), t.view(torch.uint8)) for n, t in before.items())
    assert half[0].bias.dtype is torch.bfloat16 and half(x.bfloat16()).dtype is torch.bfloat16
    assert half[0].dtype is gs.densify_(copy.deepcopy(half))[0].weight.dtype is torch.bfloat16


def test_gradients_autocast_and_shapes() -> None:
    layer = gs.quantize_(nn.Sequential(network()[0]), "fp8")[0]
    x = torch.randn(2, 3, 160, requires_grad=True)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(2, 3, 160))
    assert not layer(x.detach()).requires_grad and layer(torch.ones(160)).shape == (128,)
    assert layer(torch.ones(0, 160)).shape == (0, 128)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.detach()).dtype is torch.bfloat16
    with pytest.raises((RuntimeError, ValueError)):
        layer(torch.ones(2, 161))


def test_rows_of_zeros_and_tokens_that_are_not_finite() -> None:
    layer = nn.Linear(160, 128)
    with torch.no_grad():
        layer.weight[3] = 0
    for pattern in (None, "2:4"):
        small = gs.quantize_(nn.Sequential(copy.deepcopy(layer)), "fp8")[0]
        if pattern:
            small = gs.quantize_(gs.sparsify_(nn.Sequential(copy.deepcopy(layer)), pattern), "fp8")[0]
        x = torch.zeros(3, 160)
        x[1, 0], x[2] = torch.inf, 1e30
        out = small(x)
        assert torch.equal(out[0], layer.bias) and bool(out[1].isnan().all()) and bool(out[2].isfinite().all())
        assert torch.equal(out[2, 3], layer.bias[3].detach())


def test_the_same_numbers_in_another_layout() -> None:
    layer = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(160, 128)), gs.VNM("all", 2, 8)), "fp8")[0]
    weight = layer.weight
    for layout in (Layout("fp8"), Layout("fp8", "all", 8, weights_only=True), Layout("fp8", "all", 8)):
        layer.repack(layout)
        assert torch.equal(layer.weight, weight) and layer.layout == layout
        layer.check()
    assert read_format(layer.format) == (layout, torch.float32)


def test_a_gpu_without_sparse_8_bits_gets_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = gs.quantize_(nn.Sequential(network()[0]), "fp8")[0]
    weight = layer.weight
    monkeypatch.setattr(gpu, "capability", lambda device: (8, 9))
    monkeypatch.setattr(QuantizedLinear, "device", torch.device("cuda", 0))
    layer.suit_device()
    monkeypatch.undo()
    assert layer.layout == Layout("fp8") and torch.equal(layer.weight, weight)


@pytest.mark.parametrize("make", [bert, gpt2])
@pytest.mark.parametrize("pattern", ["2:4", "60%"])
def test_transformers_models(make: Any, pattern: str, tmp_path: Path) -> None:
    model = make().eval()
    gs.sparsify_(model, pattern)
    given = inputs(model)
    with torch.no_grad():
        before = model(**given).logits
        gs.quantize_(model, "fp8")
        for layer in model.modules():
            if isinstance(layer, QuantizedLinear) and pattern == "60%":
                layer.repack(Layout("fp8", bitmap=True))
        after = model(**given).logits
    assert 0 < float((after - before).abs().max()) < 0.4 * float(before.abs().max())
    model.save_pretrained(tmp_path)
    auto = tf.AutoModelForCausalLM if make is gpt2 else tf.AutoModelForSequenceClassification
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    with torch.no_grad():
        assert torch.equal(loaded(**given).logits, after)
    gs.densify_(loaded).save_pretrained(tmp_path / "dense")
    with torch.no_grad():
        dense = auto.from_pretrained(tmp_path / "dense")(**given).logits
    assert float((dense - after).abs().max()) < 0.4 * float(before.abs().max())


def test_compiled_and_exported() -> None:
    x = torch.randn(7, 160)
    models = [gs.quantize_(network(p), how) for how, p in (("fp8", "2:4"), ("fp8", None), ("int4", "2:4"))]  # type: ignore[arg-type]
    for model in (*models, bitmaps()):
        with torch.no_grad():
            expected = model(x)
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(compiled(x), expected)
            exported = torch.export.export(model, (x,), strict=False).module()
            torch.testing.assert_close(exported(x), expected)


def test_summary_report_and_explain() -> None:
    model = gs.quantize_(network("2:4"), "fp8")
    rows = {row.name: row for row in gs.summary(model).rows}
    first = rows["0.values"]
    assert (first.shape, first.format) == ((128, 160), "fp8 2:4") and 0.45 < first.density <= 0.5
    assert first.bytes == model[0].nbytes and first.dense_bytes == 128 * 160 * 4
    assert gs.count_flops(model, torch.ones(2, 160)).ratio < 0.51
    said = gs.explain(model[0], torch.ones(2, 160))
    assert said.how == "fallback" and "fp8 2:4" in str(said) and "this is a CPU" in said.why
    facts = gs.report(model, None, tokens=(2,)).layers
    assert [(fact.format, fact.pattern) for fact in facts] == [("fp8 2:4", "2:4")] * 2 and facts[0].times


@pytest.mark.parametrize("numbers", ["fp8", "int4"])
def test_a_state_dict_without_its_empty_arrays(numbers):
    """accelerate takes empty arrays for one that several layers share, and saves the first alone."""
    model = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), "2:4"), numbers)
    other = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), "2:4"), numbers)
    state = {name: tensor for name, tensor in model.state_dict().items() if tensor.numel()}
    other.load_state_dict(state, strict=False)
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(other(x), model(x))
