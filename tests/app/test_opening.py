import pytest
import torch
from safetensors.torch import save_file

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


def test_inputs_of_a_folder_fit_the_model(bert, texts):
    opened = open_model(bert)
    assert opened.example(1000)["input_ids"].shape == (1, 32)
    batches = batches_of(opened, texts, samples=10, length=4)
    assert [len(batch["input_ids"]) for batch in batches] == [8, 2]
    assert all(batch["input_ids"].shape[1] <= 4 for batch in batches)


def test_images(tmp_path):
    model = torch.nn.Module()
    model.main_input_name = "pixel_values"
    model.config = type("Config", (), {"image_size": 8, "num_channels": 3})()
    assert Opened(tmp_path, model, True).example(1)["pixel_values"].shape == (1, 3, 8, 8)
    model.main_input_name = "input_values"
    with pytest.raises(ValueError, match="'input_values' needs Python"):
        Opened(tmp_path, model, True).example(1)


def test_targets_are_checked_first(tmp_path):
    check_target(tmp_path / "new", True, False)
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="--force"):
        check_target(tmp_path / "file", False, False)
    with pytest.raises(ValueError, match="is a file, and the result is not"):
        check_target(tmp_path / "file", True, True)
    with pytest.raises(ValueError, match="is not a folder"):
        check_target(tmp_path / "no" / "x", True, False)


def test_a_failed_save_leaves_no_trace(bert, tmp_path, monkeypatch):
    opened = open_model(bert)
    out = tmp_path / "out"
    out.mkdir()
    (out / "old").touch()
    monkeypatch.setattr(type(opened.model), "save_pretrained", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        save_model(opened, out)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "old"]
