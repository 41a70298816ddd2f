"""save_pretrained and from_pretrained: what was sparse is sparse, bit by bit, for real transformers classes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers as tf

import gossamer as gs
from tests.hf.models import MODELS, bert, gpt2, inputs, llama
from tests.support import assert_same_weights, is_sparse

tf.utils.logging.disable_progress_bar()


def assert_same(a: Any, b: Any) -> None:
    one, other = a.state_dict(), b.state_dict()
    assert one.keys() == other.keys()
    for name, x in one.items():
        assert torch.equal(x, other[name]), name
    assert_same_weights(a, b)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "format",
    [gs.Masked(), gs.CSR(), gs.formats.PackedCSR(), gs.formats.PackedTiles(), gs.formats.PackedBitmap()],
    ids=str,
)
def test_round_trip(name: str, format: gs.Format, tmp_path: Path) -> None:
    make, auto = MODELS[name]
    model = gs.sparsify_(make().eval(), "75%", format=format)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())["quantization_config"]
    sparse = gs.nn.sparse_parameters(model)
    assert sparse and config["quant_method"] == "gossamer"
    if format == gs.Masked():
        assert config["masked"] == list(sparse) and not config["sparsity_config"]
    else:
        assert {n: record["format"] for n, record in config["sparsity_config"].items()} == dict.fromkeys(
            sparse, repr(format)
        )
    loaded, info = auto.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert_same(model, loaded)
    given = inputs(model)
    with gs.fallback("silent"):
        assert torch.equal(model(**given).logits, loaded(**given).logits)


def test_saved_again_in_shards(tmp_path: Path) -> None:
    model = gs.sparsify_(llama(), "75%", format=gs.CSR())
    model.save_pretrained(tmp_path / "a")
    once = tf.AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    once.save_pretrained(tmp_path / "b", max_shard_size="50KB")
    assert len(list((tmp_path / "b").glob("model-*.safetensors"))) > 3
    assert_same(model, tf.AutoModelForCausalLM.from_pretrained(tmp_path / "b"))


def test_base_model_of_a_head_and_back(tmp_path: Path) -> None:
    model = gs.sparsify_(bert(), "75%")
    model.save_pretrained(tmp_path / "head")
    base = tf.AutoModel.from_pretrained(tmp_path / "head")
    assert_same(model.bert, base)
    base.save_pretrained(tmp_path / "base")
    again = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "base")
    assert_same(model.bert, again.bert)


def test_dtype(tmp_path: Path) -> None:
    model = gs.sparsify_(bert(), "75%", format=gs.CSR())
    model.save_pretrained(tmp_path)
    half = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert all(p.dtype == torch.bfloat16 for p in half.parameters())
    weight = half.classifier.weight
    assert torch.equal(weight.to_dense(), model.classifier.weight.detach().to_dense().bfloat16())


def test_tied_embedding_made_sparse(tmp_path: Path) -> None:
    model = gs.sparsify_(gpt2(), {"*": "50%"}, format=gs.CSR())
    assert is_sparse(model.transformer.wte.weight)
    model.save_pretrained(tmp_path)
    loaded = tf.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight_values is loaded.transformer.wte.weight_values
    assert_same(model, loaded)


def test_tied_head_stays_dense_unless_named() -> None:
    model = gs.sparsify_(gpt2(), "50%")
    assert not is_sparse(model.lm_head.weight)
    assert is_sparse(gs.sparsify_(gpt2(), "50%", where="lm_head").lm_head.weight)


def test_patterns_run_along_the_inputs_of_conv1d() -> None:
    mask = gs.sparsify_(gpt2(), "2:4").transformer.h[0].mlp.c_fc.weight.mask()  # [inputs, outputs]
    assert bool((mask.view(16, 4, 256).sum(1) == 2).all())


def test_dense_again_is_an_ordinary_model(tmp_path: Path) -> None:
    model = gs.sparsify_(bert(), "75%")
    model.save_pretrained(tmp_path)
    gs.densify_(model).save_pretrained(tmp_path)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    assert_same(model, tf.AutoModelForSequenceClassification.from_pretrained(tmp_path))


def test_from_pretrained_then_dequantize(tmp_path: Path) -> None:
    gs.sparsify_(bert(), "75%").save_pretrained(tmp_path)
    model = tf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    model.dequantize()
    assert not gs.nn.sparse_parameters(model)
    assert 0.7 < float((model.classifier.weight == 0).float().mean()) < 0.8


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("crd1", lambda t: t.fill_(1000), "must lie in 0"),
        ("pos1", lambda t: t.fill_(0), "crd has 2048 entries, must have 0"),
        ("values", lambda t: t[:-1], "size|shape|values"),
        ("format", lambda t: torch.tensor(list(b"CSR(1)"), dtype=torch.uint8), "format|size|shape"),
        ("crd1", None, "crd"),
    ],
)
def test_a_broken_file_is_refused(part: str, change: Any, message: str, tmp_path: Path) -> None:
    gs.sparsify_(bert(), "75%", format=gs.CSR()).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(path)
    key = f"bert.encoder.layer.1.output.dense.weight_{part}"
    if change is None:
        del state[key]
    else:
        state[key] = change(state[key].clone()).contiguous()
    safetensors.torch.save_file(state, path, {"format": "pt"})
    with pytest.raises((RuntimeError, ValueError), match=message):
        tf.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    target = gs.sparsify_(bert(), "75%", format=gs.CSR())
    own = {k: v for k, v in state.items() if v.numel()}  # without the empty ones
    with pytest.raises((ValueError, RuntimeError)):
        target.load_state_dict(own)


def without_gossamer(folder: Path, code: str) -> Any:
    """Run a program that has transformers and can't import gossamer."""
    block = "import sys\nsys.modules['gossamer'] = None\nimport torch, transformers as tf\n"
    call = [sys.executable, "-c", block + code, folder]
    return subprocess.run(call, capture_output=True, text=True, check=False)


def test_a_masked_folder_is_an_ordinary_one_without_gossamer(tmp_path: Path) -> None:
    model = gs.sparsify_(bert().eval(), "75%")
    model.save_pretrained(tmp_path)
    code = (
        "model, info = tf.AutoModelForSequenceClassification.from_pretrained(sys.argv[1], output_loading_info=True)\n"
        "assert not any(info.values()), info\n"
        "print(float((model.classifier.weight == 0).float().mean()), float(model.classifier.weight.sum()))"
    )
    result = without_gossamer(tmp_path, code)
    zeros, total = map(float, result.stdout.split())
    assert zeros == 0.75 and abs(total - float(model.classifier.weight.detach().sum())) < 1e-5, result.stderr


def test_a_stored_folder_is_refused_without_gossamer(tmp_path: Path) -> None:
    gs.sparsify_(bert(), "75%", format=gs.CSR()).save_pretrained(tmp_path)
    result = without_gossamer(tmp_path, "tf.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])")
    assert result.returncode != 0 and "size" in result.stderr and "gossamer" in result.stderr


def test_a_missing_array_is_refused_even_if_memory_holds_a_right_one(tmp_path: Path, monkeypatch: Any) -> None:
    gs.sparsify_(bert(), "75%", format=gs.CSR()).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    state = safetensors.torch.load_file(path)
    right = state.pop("bert.encoder.layer.1.output.dense.weight_crd1")
    safetensors.torch.save_file(state, path, {"format": "pt"})
    empty_like = torch.empty_like

    def lucky(tensor: torch.Tensor, **options: Any) -> torch.Tensor:
        out = empty_like(tensor, **options)
        same = out.shape == right.shape and out.dtype == right.dtype and not out.is_meta
        return out.copy_(right) if same else out

    monkeypatch.setattr(torch, "empty_like", lucky)
    with pytest.raises(ValueError, match=r"lacks weight_crd1 of bert\.encoder\.layer\.1\.output\.dense\.weight"):
        tf.AutoModelForSequenceClassification.from_pretrained(tmp_path)


def test_inspect_of_a_model_folder(tmp_path: Path) -> None:
    model = gs.sparsify_(bert(), "75%", format=gs.CSR())
    model.save_pretrained(tmp_path)
    rows = {row.name: row for row in gs.io.inspect(tmp_path / "model.safetensors")}
    assert set(rows) == set(gs.io.write.state_of(model))
    row = rows["classifier.weight"]
    assert (row.format, row.sparsity, row.shape) == ("CSR()", 0.75, (2, 64))
    with pytest.raises(gs.io.BadFile, match="from_pretrained"):
        gs.load(model, tmp_path / "model.safetensors")


@pytest.mark.parametrize("first", ["gossamer", "transformers"])
def test_one_import_is_enough(first: str, tmp_path: Path) -> None:
    """In a new process, in either order: import gossamer, and from_pretrained reads sparse models."""
    gs.sparsify_(bert(), "75%").save_pretrained(tmp_path)
    second = "transformers" if first == "gossamer" else "gossamer"
    code = f"import {first}\nimport {second}\nimport sys\n" + (
        "model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1])\n"
        "print(len(gossamer.models.sparse_parameters(model)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stdout.strip() == "14", result.stderr


def test_gossamer_alone_imports_nothing_of_transformers() -> None:
    code = (
        "import sys, gossamer; print([m for m in sys.modules if m.split('.')[0] in ('transformers', 'peft', 'rich')])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_transformers_without_a_register_goes_on_working(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "gossamer.models.hf.quantizer", None)  # importing it is an ImportError now
    model = gs.sparsify_(bert(), "75%")
    assert is_sparse(model.classifier.weight)
    assert getattr(model, "hf_quantizer", None) is None
    assert "can't keep sparse weights with this transformers" in caplog.text


def test_another_quantizer_is_left_alone() -> None:
    model = bert()
    model.hf_quantizer = other = object()
    gs.sparsify_(model, "75%")
    assert model.hf_quantizer is other


@pytest.mark.parametrize("format", [gs.Masked(), gs.formats.PackedCSR()], ids=str)
def test_a_loaded_model_can_be_cast(format: gs.Format, tmp_path: Path) -> None:
    """transformers refuses half() and float() of quantized models, which a sparse one is not."""
    gs.sparsify_(bert().eval(), "75%", format=format).save_pretrained(tmp_path)
    model = tf.BertForSequenceClassification.from_pretrained(tmp_path).half()
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    given = inputs(model)
    expected = gs.densify_(tf.BertForSequenceClassification.from_pretrained(tmp_path)).float()(**given).logits
    torch.testing.assert_close(model.float()(**given).logits, expected, rtol=1e-2, atol=1e-2)
