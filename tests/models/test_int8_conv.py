"""Convolutions in eight bits as layers: which become one, what they compute, pack_, files, traces, reports."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gossamer as gs
from gossamer import native
from gossamer.io.rows import inspect
from gossamer.kernels.int8.weight import _with
from gossamer.models.int8_conv import DynamicInt8Conv, is_int8_convolution
from gossamer.models.pack import tune

pytestmark = pytest.mark.skipif(not native.load(), reason="no native kernels")
LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "3x3": (lambda: nn.Conv2d(5, 20, 3, padding=1), (2, 5, 9, 8)),
    "strided, even, unequal": (lambda: nn.Conv2d(16, 9, (2, 5), (3, 2), (0, 4), bias=False), (3, 16, 11, 12)),
    "dilated": (lambda: nn.Conv2d(4, 8, 3, dilation=(2, 3)), (1, 4, 12, 13)),
    "same": (lambda: nn.Conv2d(4, 8, (2, 4), padding="same", dilation=2), (1, 4, 12, 13)),
    "valid": (lambda: nn.Conv2d(4, 8, 2, padding="valid"), (1, 4, 5, 5)),
    "reflect": (lambda: nn.Conv2d(4, 8, 3, padding=(2, 1), padding_mode="reflect"), (1, 4, 6, 5)),
    "circular": (lambda: nn.Conv1d(4, 8, 3, padding=2, padding_mode="circular"), (2, 4, 9)),
    "groups": (lambda: nn.Conv2d(12, 9, 3, groups=3, padding=1), (2, 12, 6, 7)),
    "one dimension": (lambda: nn.Conv1d(7, 18, 5, 2, 2, 2), (3, 7, 30)),
    "one dimension, same": (lambda: nn.Conv1d(7, 18, 5, padding="same", dilation=2), (3, 7, 30)),
    "pointwise": (lambda: nn.Conv2d(33, 17, 1), (2, 33, 4, 4)),
}


def layer_of(name: str, how: str | None) -> tuple[nn.Module, torch.Tensor]:
    """A layer, sparse or not, and its input."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    return layer if how is None else gs.sparsify_(layer, how), torch.randn(shape)


@pytest.mark.parametrize("how", [None, "75%"])
@pytest.mark.parametrize("name", LAYERS)
def test_computes_what_the_layer_did(name: str, how: str | None) -> None:
    layer, x = layer_of(name, how)
    small = gs.quantize_(copy.deepcopy(layer), "int8")
    assert isinstance(small, DynamicInt8Conv) and small.weight.shape == layer.weight.shape
    with torch.no_grad():
        exact, out = layer(x), small(x)
        assert out.shape == exact.shape and out.is_contiguous() == exact.is_contiguous()
        assert float((out - exact).norm() / exact.norm()) < 0.02
        torch.testing.assert_close(small.as_dense()(x), small.compute_dense(x))
        assert float((small.compute_dense(x) - out).norm() / out.norm()) < 0.02
        alone = small(x[0])  # without images
    torch.testing.assert_close(alone, out[0])
    kept = layer.weight.mask() if how else torch.ones_like(layer.weight, dtype=torch.bool)
    assert torch.equal(small.mask(), kept) and small.nnz == int(kept.sum())
    assert small.tokens(tuple(x.shape)) == exact.numel() // exact.shape[1]
    assert str(small.as_dense()) == str(LAYERS[name][0]())


def test_which_layers() -> None:
    assert not is_int8_convolution(nn.Conv3d(2, 2, 1)) and not is_int8_convolution(nn.ConvTranspose2d(2, 2, 1))
    model = nn.Sequential(
        nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 16, 1), nn.Conv3d(1, 1, 1), nn.ConvTranspose2d(16, 4, 2)
    )
    gs.quantize_(model, "int8")
    assert [type(m).__name__ for m in model] == ["Conv2d", "DynamicInt8Conv", "Conv3d", "ConvTranspose2d"]
    with pytest.raises(ValueError, match="depthwise"):
        gs.quantize_(nn.Sequential(nn.Conv2d(8, 8, 3, groups=8)), "int8")


def test_a_tied_weight_is_stored_once() -> None:
    first, second = nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3, stride=2)
    second.weight = first.weight
    model = gs.quantize_(nn.Sequential(first, second), "int8")
    assert model[0].packed is model[1].packed and model[1].stride == (2, 2)
    assert model(torch.randn(1, 4, 9, 9)).shape == (1, 4, 3, 3)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(24, 32, 3), nn.ReLU(), nn.Flatten()
    return gs.sparsify_(nn.Sequential(*layers, nn.Linear(32 * 4, 10)), "80%").eval()


def test_calibration_gives_each_layer_a_range() -> None:
    model, x = network(), torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
    gs.quantize_(model, "int8", calibration=[x])
    assert model[0].range is not None and "activations" in repr(model[0])
    with torch.no_grad():
        out = model(x)
    assert float((out - expected).norm() / expected.norm()) < 0.03


def test_pack_measures_layouts_and_keeps_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "SECONDS", 0.001)
    monkeypatch.setattr(native, "cache_dir", lambda: tmp_path)
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        before = model(x)
        without = gs.pack_(model, quiet=True)
        assert dict(without.skipped)["0"] == "a convolution needs example_inputs that reach it"
        report = gs.pack_(model, x, quiet=True)
        assert torch.equal(model(x), before)
    rows = {row.name: row for row in report.layers}
    assert rows["0"].shape == (24, 3, 3, 3) and rows["0"].tokens == (128,) and rows["3"].tokens == (8,)
    assert rows["3"].format == str(model[3].layout) and abs(rows["3"].sparsity - 0.8) < 0.01
    guessed = gs.pack_(model, x, tune=False, quiet=True)
    assert [row.tokens for row in guessed.layers] == [row.tokens for row in report.layers]


def test_another_stride_is_another_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "SECONDS", 0.001)
    monkeypatch.setattr(native, "cache_dir", lambda: tmp_path)
    keys = []
    monkeypatch.setattr(tune, "store_known", lambda key, times: keys.append(key))
    monkeypatch.setattr("gossamer.models.pack.int8.truth.steady", lambda measure, first, bound: (measure(), True))
    for stride in (1, 2):
        torch.manual_seed(0)
        gs.pack_(gs.quantize_(nn.Sequential(nn.Conv2d(4, 8, 3, stride)), "int8"), torch.randn(1, 4, 9, 9), quiet=True)
    assert len(set(keys)) == 2


def test_copied_saved_and_loaded(tmp_path: Path) -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert torch.equal(other(x), expected)
        gs.save(model, tmp_path / "model.safetensors")
        for fresh in (network(), gs.densify_(network()), gs.quantize_(network(), "int8")):
            assert torch.equal(gs.load(fresh, tmp_path / "model.safetensors")(x), expected)
        other = gs.quantize_(gs.densify_(network()), "int8")
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(x), expected)
    with pytest.raises(ValueError, match="32 x 24 x 3 x 3, and that of the layer 24 x 3 x 3 x 3"):
        other.load_state_dict(model.state_dict() | {"0.packed": model[3].packed})


def test_a_file_says_what_it_holds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(6, 9, (2, 3), groups=3), nn.Flatten(2), nn.Conv1d(9, 4, 5)
    model = gs.quantize_(gs.sparsify_(nn.Sequential(*layers), "50%"), "int8")
    gs.save(model, tmp_path / "model.safetensors")
    rows = {row.name: row for row in inspect(tmp_path / "model.safetensors")}
    assert rows["0.weight"].shape == (9, 2, 2, 3) and rows["2.weight"].shape == (4, 9, 5)
    assert abs(rows["0.weight"].sparsity - 0.5) < 0.01
    gs.save(model, tmp_path / "dense.safetensors", dense=True)
    fresh = nn.Sequential(nn.Conv2d(6, 9, (2, 3), groups=3), nn.Flatten(2), nn.Conv1d(9, 4, 5))
    gs.load(fresh, tmp_path / "dense.safetensors")
    assert torch.equal(fresh[0].weight, model[0].weight) and torch.equal(fresh[2].weight, model[2].weight)
    for layer in (model[0], model[2]):  # what no layer is, whatever a file says
        for change in ({"kernel_w": 4}, {"channel_groups": 5}, {"kernel_h": -1}, {"kernel_w": 0}):
            with pytest.raises(ValueError, match=r"a kernel of|int8 weight is"):
                layer.check_bytes(_with(layer.packed, **change))


def test_reports_agree() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8)
    rows = {row.name: row for row in gs.summary(model).rows}
    assert rows["0.packed"].shape == (24, 3, 3, 3) and abs(rows["0.packed"].density - 0.2) < 0.01
    flops = gs.count_flops(model, x)
    assert flops.layers["0"][1] == 2 * 2 * 64 * 24 * 27 and abs(flops.ratio - 0.2) < 0.02
    said = gs.explain(model[0], x)
    assert (said.operator, said.how) == ("conv2d", "native") and "range for each image" in said.why
    page = gs.report(model, None, example_inputs=x)
    facts = {layer.name: layer for layer in page.layers}
    assert facts["0.weight"].format == str(model[0].layout) and facts["0.weight"].times[0].tokens == 128


def test_densify_gives_the_layers_back() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model[0].as_dense()(x)
        gs.densify_(model)
        assert type(model[0]) is nn.Conv2d and not list(model[0].buffers())
        torch.testing.assert_close(model[0](x), expected)


def test_traces() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        expected = model(x)
        compiled = torch.compile(model, fullgraph=True)
        torch.testing.assert_close(compiled(x), expected)
        lasting = x.contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(compiled(lasting), model(lasting))
        exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},))
        torch.testing.assert_close(exported.module()(x), expected)
        torch.testing.assert_close(exported.module()(x[:1]), model(x[:1]))


def test_bad_input() -> None:
    layer = gs.quantize_(nn.Conv2d(3, 4, 3), "int8")
    with pytest.raises(ValueError, match=r"\[images, 3, height, width\]"):
        layer(torch.zeros(1, 4, 8, 8))
    with pytest.raises(ValueError, match="kernel is larger"):
        layer(torch.zeros(1, 3, 2, 8))
    with pytest.raises(TypeError, match="takes floats"):
        layer(torch.zeros(1, 3, 8, 8, dtype=torch.int64))
    flat = gs.quantize_(nn.Conv1d(3, 4, 3), "int8")
    with pytest.raises(ValueError, match=r"\[images, 3, width\]"):
        flat(torch.zeros(1, 4, 8))


def test_gradients_reach_the_input_and_the_bias() -> None:
    model, x = gs.quantize_(network(), "int8"), torch.randn(2, 3, 8, 8, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None and float(x.grad.abs().sum()) > 0 and float(model[0].bias.grad.abs().sum()) > 0
