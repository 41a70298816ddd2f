"""gs.load: a file into a model, or the model as it was."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer as gs


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def model(width: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 4))


def test_by_hand(path: Path) -> None:
    gs.save({"weight": gs.from_dense(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), gs.CSR()), "bias": torch.ones(2)}, path)
    layer = nn.Linear(2, 2)
    assert gs.load(layer, path) is layer
    assert layer.weight.format == gs.CSR() and layer.weight.to_dense().tolist() == [[0.0, 2.0], [3.0, 0.0]]
    assert layer.bias.tolist() == [1.0, 1.0] and layer(torch.tensor([1.0, 10.0])).tolist() == [21.0, 4.0]


def test_meta_model(path: Path) -> None:
    one = gs.sparsify_(model(), "75%", format=gs.CSR()).eval()
    gs.save(one, path)
    with torch.device("meta"):
        other = model().eval()
    gs.load(other, path)
    assert all(t.device.type == "cpu" for t in (*other.parameters(), *other.buffers()))
    assert torch.equal(other(torch.ones(2, 16)), one(torch.ones(2, 16)))
    assert other[0].weight.requires_grad


def test_sparse_into_masked_keeps_how_it_trains(path: Path) -> None:
    gs.save(gs.sparsify_(nn.Linear(8, 8), "50%", format=gs.CSR()), path)
    other = gs.sparsify_(nn.Linear(8, 8), "75%")
    weight = gs.nn.all_weights(other)["weight"]
    weight.held.collects = True
    gs.load(other, path)
    assert other.weight.format == gs.CSR() and weight.held.collects


def test_dense_file_makes_a_sparse_model_dense(path: Path) -> None:
    dense = nn.Linear(8, 8)
    gs.save(dense, path)
    other = gs.load(gs.sparsify_(nn.Linear(8, 8), "75%"), path)
    assert type(other.weight) is nn.Parameter and torch.equal(other.weight, dense.weight)


def test_model_dtype_and_views_are_kept(path: Path) -> None:
    gs.save(gs.sparsify_(nn.Linear(8, 8), "50%"), path)
    other = nn.Linear(8, 8, dtype=torch.float64)
    storage = other.bias.data_ptr()
    gs.load(other, path)
    assert other.weight.dtype == torch.float64 and other.bias.data_ptr() == storage


def test_names_that_differ(path: Path) -> None:
    gs.save(nn.Linear(4, 4), path)
    other = nn.Linear(4, 4, bias=False)
    before = other.weight.clone()
    with pytest.raises(ValueError, match=r"not in the model is bias. strict=False"):
        gs.load(other, path)
    assert torch.equal(other.weight, before)
    gs.load(other, path, strict=False)
    assert not torch.equal(other.weight, before)
    with pytest.raises(ValueError, match=r"not in the file are bn.weight, bn.bias"):
        gs.load(nn.ModuleDict({"bn": nn.BatchNorm1d(3)}), path)


def test_shapes_that_differ(path: Path) -> None:
    gs.save(gs.sparsify_(nn.Linear(4, 4), "50%"), path)
    with pytest.raises(ValueError, match=r"'weight' is \(4, 8\) in the model and \(4, 4\) in the file"):
        gs.load(nn.Linear(8, 4), path)


def test_a_broken_file_leaves_the_model_as_it_was(path: Path) -> None:
    gs.save(gs.sparsify_(model(), "50%", format=gs.CSR()), path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the last array of the last tensor
    path.write_bytes(data)
    other = model()
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(gs.io.BadFile, match="SHA-256"):
        gs.load(other, path)
    assert all(torch.equal(v, before[k]) for k, v in other.state_dict().items())
    assert type(other[0].weight) is nn.Parameter


@pytest.mark.parametrize("small", [True, False], ids=["held", "read twice"])
def test_a_large_file_is_read_twice_and_gives_the_same(
    path: Path, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["gossamer.io.load"], "_SMALL", 1 << 26 if small else 0)
    one = gs.sparsify_(model(), "75%", format=gs.CSR()).eval()
    gs.save(one, path)
    read: list[str] = []
    original = gs.io.File.__getitem__
    monkeypatch.setattr(gs.io.File, "__getitem__", lambda self, name: read.append(name) or original(self, name))
    other = gs.load(model().eval(), path)
    assert torch.equal(other(torch.ones(2, 16)), one(torch.ones(2, 16)))
    assert len(read) == (1 if small else 2) * len(set(read))


def test_many_names_are_cut_short(path: Path) -> None:
    gs.save({f"w{i}": torch.ones(1) for i in range(6)}, path)
    with pytest.raises(ValueError, match=r"not in the file is weight; not in the model are w0, .*, w4 and 1 more\."):
        gs.load(nn.Linear(1, 1, bias=False), path)


def test_a_place_that_is_no_tensor_is_refused(path: Path) -> None:
    class Odd(nn.Module):
        def get_extra_state(self) -> int:
            return 3

        def set_extra_state(self, state: object) -> None:
            pass

    gs.save({"_extra_state": torch.ones(1)}, path)
    with pytest.raises(ValueError, match="'_extra_state' of the model is a int, not a tensor"):
        gs.load(Odd(), path)


def test_a_device_is_for_models_on_the_meta_device(path: Path) -> None:
    gs.save(nn.BatchNorm1d(3), path)
    with torch.device("meta"):
        other = nn.BatchNorm1d(3)
    gs.load(other, path, device=torch.device("cpu"))
    assert other.running_var.tolist() == [1.0, 1.0, 1.0] and other.weight.device.type == "cpu"
    assert other.num_batches_tracked.dtype is torch.int64
