"""inspect: what a file holds, a row for each tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import gossamer as gs
from gossamer.core.join import from_entries
from gossamer.io.rows import inspect_all
from tests.hf.models import bert


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.safetensors"


def test_rows_by_hand(path: Path) -> None:
    sparse = gs.from_dense(torch.tensor([[0.0, 2.0, 0.0, 0.0], [3.0, 0.0, 0.0, 4.0]]), gs.CSR())
    gs.save({"w": sparse, "b": torch.tensor([0.0, 1.0, 0.0, 0.0]).half(), "n": torch.tensor(0)}, path)
    rows = {row.name: row for row in gs.io.inspect(path)}
    w = rows["w"]
    assert (w.shape, w.dtype, w.format, w.sparsity) == ((2, 4), "float32", "CSR()", 0.625)
    assert (w.bytes, w.dense_bytes, w.tied_to) == (3 * 4 + 3 * 4 + 3 * 4, 32, None) and w.pattern
    b = rows["b"]
    assert (b.dtype, b.format, b.sparsity, b.bytes, b.dense_bytes, b.pattern) == (
        "float16",
        "Dense()",
        0.0,
        8,
        8,
        "",
    )  # a vector
    assert rows["n"].sparsity == 0.0 and rows["n"].bytes == 8  # one number is no tensor of zeros


def test_a_tied_tensor_counts_once(path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    gs.save(model, path)
    one, other = gs.io.inspect(path)
    assert (one.bytes, one.tied_to) == (36, None)
    assert (other.name, other.bytes, other.dense_bytes, other.tied_to) == ("1.weight", 0, 0, "0.weight")
    assert other.shape == (3, 3)


def test_empty_tensors(path: Path) -> None:
    gs.save({"e": torch.ones(0, 3)}, path)
    (row,) = gs.io.inspect(path)
    assert (row.shape, row.sparsity, row.bytes) == ((0, 3), 0.0, 0)


@pytest.mark.parametrize(("version", "joint"), [(2, ":"), (3, "_")], ids=["a file", "a folder of transformers"])
def test_files_without_digests_are_checked_by_their_formats(path: Path, version: int, joint: str) -> None:
    def written(crd: list[int]) -> None:
        record = {"format": "CSR()", "shape": [2, 4], "parts": ["values", "pos1", "crd1"]}
        page = {"version": version, "tensors": {"w": record, "elsewhere": record}}
        arrays = {"values": torch.ones(2), "pos1": torch.tensor([0, 1, 2]), "crd1": torch.tensor(crd)}
        tensors = {f"w{joint}{part}": array for part, array in arrays.items()}
        metadata = {"gossamer": json.dumps(page)}
        safetensors.torch.save_file({**tensors, "b": torch.ones(2)}, path, metadata=metadata)

    written([1, 3])
    rows = gs.io.inspect(path)
    assert [(row.name, row.format) for row in rows] == [("w", "CSR()"), ("b", "Dense()")]
    assert rows[0].sparsity == 0.75
    written([1, 4])
    with pytest.raises(gs.io.BadFile, match=r"'w': .*crd has coordinates 1 .. 4"):
        gs.io.inspect(path)


def test_inspect_of_plain_and_of_other_files(path: Path) -> None:
    safetensors.torch.save_file({"w": torch.tensor([[0.0, 1.0], [0.0, 2.0]])}, path)
    (row,) = gs.io.inspect(path)
    assert (row.format, row.sparsity, row.bytes) == ("Dense()", 0.5, 16)
    with pytest.raises(gs.io.BadFile, match=r"no metadata of gs\.save"):
        gs.load(nn.Linear(2, 2), path)
    with pytest.raises(FileNotFoundError):
        gs.io.inspect(path.with_name("nobody"))


@pytest.mark.parametrize("how", ["2:4", None])
def test_layers_in_int8_are_weights(how: str | None, path: Path) -> None:
    model = nn.Sequential(nn.Linear(64, 32))
    if how:
        gs.sparsify_(model, how)
    gs.save(gs.quantize_(model, "int8"), path)
    rows = {row.name: row for row in gs.io.inspect(path)}
    weight = rows["0.weight"]
    assert set(rows) == {"0.weight", "0.bias"} and weight.shape == (32, 64) and weight.dense_bytes == 4 * 32 * 64
    assert weight.dtype == "int8" and weight.bytes == model[0].packed.numel()
    assert (weight.sparsity, weight.pattern) == ((0.5, "2:4") if how else (0.0, ""))


def test_the_layers_of_a_folder_in_int8(tmp_path: Path) -> None:
    """save_pretrained writes an empty tensor beside each, so that a program without gossamer stops there."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    gs.quantize_(transformers.BertModel(config), "int8").save_pretrained(tmp_path)
    rows = [row for row in gs.io.inspect(tmp_path / "model.safetensors") if row.name.endswith("query.weight")]
    assert [(row.shape, row.format) for row in rows] == [((32, 32), "int8 dense")]


def test_bytes_that_are_no_int8_weight(path: Path) -> None:
    model = gs.quantize_(gs.sparsify_(nn.Sequential(nn.Linear(64, 32)), "2:4"), "int8")
    packed = model[0].packed
    safetensors.torch.save_file({"packed": torch.zeros(300, dtype=torch.uint8)}, path)
    assert gs.io.inspect(path)[0].format == "Dense()"  # of some other program
    safetensors.torch.save_file({"packed": packed[:-64].clone()}, path)
    with pytest.raises(gs.io.BadFile, match="weight: "):
        gs.io.inspect(path)


@pytest.mark.parametrize("seed", range(8))
def test_summary_and_report_agree_with_inspect(seed: int, path: Path) -> None:
    """Of sparse and dense weights, with zeros among what is dense and among what is kept."""
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(16, 8), nn.Conv1d(4, 8, 3), nn.Embedding(5, 4), nn.Linear(8, 8))
    formats = [gs.Masked(), gs.CSR(), gs.COO(), gs.BSR((2, 2)), gs.formats.PackedCSR()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(torch.rand(parameter.shape, generator=rng) < torch.rand((), generator=rng))
        model[0].bias.zero_()
    if seed % 4:
        gs.sparsify_(model, {"0": "50%", "3": "2:4"}, format=formats[seed % 5])
    gs.save(model, path)
    inspected = {row.name: row.sparsity for row in gs.io.inspect(path)}
    summed = {row.name: 1 - row.density for row in gs.summary(model).rows}
    reported = {layer.name: layer.sparsity for layer in gs.report(model, measure=False).layers}
    assert inspected == pytest.approx(summed)
    assert {name: inspected[name] for name in reported} == pytest.approx(reported)
    assert inspected["0.bias"] == 0.0


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.bool])
def test_zeros_of_any_type(dtype: torch.dtype, path: Path) -> None:
    safetensors.torch.save_file({"w": torch.eye(4).to(dtype)}, path)
    assert [row.sparsity for row in gs.io.inspect(path)] == [0.75]


@pytest.mark.parametrize("format", [gs.COO(), gs.DCSR(), gs.CSF()], ids=str)
def test_a_few_entries_of_a_huge_shape(format: gs.Format, path: Path) -> None:
    """The mask of this tensor would take a terabyte."""
    keys = torch.tensor([5, 10**6 + 3, 10**12 - 1])
    gs.save({"w": from_entries(keys, torch.ones(3), (10**6, 10**6), format)}, path)
    (row,) = gs.io.inspect(path)
    assert (row.shape, row.pattern) == ((10**6, 10**6), "") and row.sparsity == 1 - 3e-12


def test_arrays_of_a_weight_that_are_divided_among_shards(tmp_path: Path) -> None:
    model = bert()
    gs.sparsify_(model, "75%", format=gs.CSR())
    model.save_pretrained(tmp_path, max_shard_size="2KB")
    files = sorted(tmp_path.glob("*.safetensors"))
    rows = {row.name: row.sparsity for row in inspect_all(files)}
    assert len(files) > 3 and rows == {row.name: 1 - row.density for row in gs.summary(model).rows}
    with pytest.raises(gs.io.BadFile, match="if it is in another shard, inspect the folder"):
        for file in files:
            gs.io.inspect(file)
