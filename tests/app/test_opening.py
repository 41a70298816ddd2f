import json
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import gossamer as gs
from gossamer.app.opening import Opened, batches_of, check_target, open_model, save_model


def test_a_file_becomes_layers_and_tensors(tmp_path):
    tensors = {"weight": torch.randn(3, 4), "bias": torch.randn(3), "scale": torch.ones(2)}
    save_file(tensors, tmp_path / "one.safetensors")
    opened = open_model(tmp_path / "one.safetensors")
    assert isinstance(opened.model, torch.nn.Linear) and not opened.folder
    assert {name: tensor.tolist() for name, tensor in opened.model.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }
    assert opened.example(8) is None


def test_sparse_files_come_back_sparse_and_the_same(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8, bias=False))
    gs.sparsify_(model, {"0": "2:4", "1": None}, format=gs.CSR())
    gs.save(model, tmp_path / "sparse.safetensors")
    opened = open_model(tmp_path / "sparse.safetensors")
    first = opened.model.get_submodule("0")
    assert first.weight.format == gs.CSR()
    assert torch.equal(first.weight.to_dense(), model[0].weight.to_dense())
    save_model(opened, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").stat().st_size == (tmp_path / "sparse.safetensors").stat().st_size


@pytest.mark.parametrize("how", ["int8", "int8 weights"])
def test_quantized_files_come_back_as_layers_and_are_exported_as_dense_weights(tmp_path, how):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 8, bias=False))
    gs.quantize_(gs.sparsify_(model, "75%", format=gs.formats.PackedCSR()), how)
    x, path = torch.randn(3, 64), tmp_path / "small.safetensors"
    gs.save(model, path)
    opened = open_model(path)
    first, last = opened.model.get_submodule("0"), opened.model.get_submodule("1")
    assert torch.equal(last(first(x)), model(x))
    save_model(opened, tmp_path / "dense.safetensors", dense=True)
    dense = load_file(tmp_path / "dense.safetensors")
    assert {name: tuple(t.shape) for name, t in dense.items()} == {
        "0.weight": (32, 64), "0.bias": (32,), "1.weight": (8, 32)
    }  # fmt: skip
    expected = gs.densify_(model).state_dict()
    assert all(torch.equal(dense[name], tensor) for name, tensor in expected.items())


def test_quantized_files_without_shapes_are_refused(tmp_path):
    gs.save(gs.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "fp8"), tmp_path / "fp8.safetensors")
    gs.save(gs.quantize_(torch.nn.Linear(64, 32), "int8"), tmp_path / "one.safetensors")
    for name, words in (("fp8", "whose shapes only their model knows"), ("one", "is a single quantized layer")):
        with pytest.raises(ValueError, match=words):
            open_model(tmp_path / f"{name}.safetensors")


def test_inputs_of_a_folder_fit_the_model(bert, texts):
    opened = open_model(bert)
    assert opened.example(1000)["input_ids"].shape == (1, 32)
    batches = batches_of(opened, texts, samples=10, length=4)
    assert [len(batch["input_ids"]) for batch in batches] == [8, 2]
    assert all(batch["input_ids"].shape[1] <= 4 for batch in batches)


def test_images(tmp_path):
    model = torch.nn.Linear(1, 1)
    model.main_input_name = "pixel_values"
    model.config = type("Config", (), {"image_size": 8, "num_channels": 3})()
    assert Opened(tmp_path, model, True).example(1)["pixel_values"].shape == (1, 3, 8, 8)
    assert Opened(tmp_path, model, True).reads_images and not Opened(tmp_path, model, False).reads_images
    model.main_input_name = "input_values"
    with pytest.raises(ValueError, match="'input_values' needs Python"):
        Opened(tmp_path, model, True).example(1)


def test_networks_without_a_size_get_usual_images(tmp_path):
    model = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    model.main_input_name, model.config = "pixel_values", object()
    image = Opened(tmp_path, model, True).example(1)["pixel_values"]
    assert image.shape == (1, 3, 224, 224) and image.dtype == torch.bfloat16


def test_an_encoder_and_decoder_gets_inputs_for_both(tmp_path, bert, texts):
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(vocab_size=50, d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2)
    for file in bert.glob("*token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    transformers.T5Model(config).save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    (batch,) = batches_of(opened, texts, samples=4, length=4)
    for inputs in (opened.example(3), batch):
        assert opened.model(**inputs).last_hidden_state.shape == (*inputs["decoder_input_ids"].shape, 16)


def test_a_checkpoint_without_some_weights_is_refused(tmp_path, bert):
    """transformers would initialise them at random."""
    folder = shutil.copytree(bert, tmp_path / "half")
    tensors = load_file(folder / "model.safetensors")
    gone = [name for name in tensors if "layer.0." in name]
    save_file({n: t for n, t in tensors.items() if n not in gone}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        ValueError, match=f"{len(gone)} weights of BertForMaskedLM are not in the checkpoint: {sorted(gone)[0]}"
    ):
        open_model(folder)


def test_texts_that_are_not_utf8_and_folders_without_a_tokenizer(tmp_path, bert, texts):
    (tmp_path / "latin1.txt").write_bytes("café".encode("latin1"))
    with pytest.raises(ValueError, match=r"latin1.txt: not UTF-8 text: .* at byte 3"):
        batches_of(open_model(bert), tmp_path / "latin1.txt", 8, 8)
    folder = shutil.copytree(bert, tmp_path / "bare", ignore=shutil.ignore_patterns("*token*", "vocab*"))
    with pytest.raises(ValueError, match="bare: no tokenizer, which --calibration needs"):
        batches_of(open_model(folder), texts, 8, 8)


def test_targets_are_checked_first(tmp_path):
    check_target(tmp_path / "new", True, False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--force"):
        check_target(tmp_path / "file", False, False)
    with pytest.raises(ValueError, match="is a file, and the result is not"):
        check_target(tmp_path / "file", True, True)
    with pytest.raises(ValueError, match="is not a folder"):
        check_target(tmp_path / "no" / "x", True, False)


def test_a_folder_that_must_not_be_written_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(ValueError, match=r"new can't be written: you have no permission to write to "):
        check_target(tmp_path / "new", True, False)


def test_more_tokens_than_the_model_accepts(bert, capsys):
    opened = open_model(bert)
    assert (opened.fitting(7), opened.fitting(32)) == (7, 32) and not capsys.readouterr().err
    assert opened.fitting(1000) == 32
    assert "accepts at most 32 tokens: using 32, not 1000" in capsys.readouterr().err


def test_a_failed_save_leaves_no_trace(bert, tmp_path, monkeypatch):
    opened = open_model(bert)
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    monkeypatch.setattr(type(opened.model), "save_pretrained", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_model(opened, out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]


def test_a_folder_of_compressed_tensors_becomes_an_ordinary_one(tmp_path, bert):
    """As LLM Compressor wrote them: every linear layer of the blocks as a bitmask and its values."""
    import safetensors.torch
    from transformers import BertForMaskedLM

    from tests.io.test_compressed import arrays

    pruned = gs.densify_(gs.sparsify_(BertForMaskedLM.from_pretrained(bert), {"*.layer.*": "2:4", "*": None}))
    pruned.save_pretrained(tmp_path / "old")
    file = tmp_path / "old" / "model.safetensors"
    state = safetensors.torch.load_file(file)
    made = {}
    for name, tensor in state.items():
        small = tensor.dim() == 2 and ".layer." in name
        made |= arrays(name.removesuffix(".weight"), tensor) if small else {name: tensor}
    safetensors.torch.save_file(made, file, {"format": "pt"})
    config = json.loads((tmp_path / "old" / "config.json").read_text())
    sparsity = {"format": "sparse-bitmask", "sparsity_structure": "2:4"}
    config["quantization_config"] = {"quant_method": "compressed-tensors", "sparsity_config": sparsity}
    (tmp_path / "old" / "config.json").write_text(json.dumps(config))

    opened = open_model(tmp_path / "old")
    save_model(opened, tmp_path / "new", dense=True)
    assert "quantization_config" not in json.loads((tmp_path / "new" / "config.json").read_text())
    again = BertForMaskedLM.from_pretrained(tmp_path / "new")
    for name, tensor in pruned.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name

    made.pop(next(name for name in made if name.endswith(".bitmask")))
    safetensors.torch.save_file(made, file, {"format": "pt"})
    with pytest.raises(ValueError, match="no bitmask"):
        open_model(tmp_path / "old")
