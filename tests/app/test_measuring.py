import io
import json

import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import gossamer as gs
from gossamer.app import cli, measuring


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(measuring, "SECONDS", 0.01)


def test_a_folder_is_measured_against_float32_and_int8(bert):
    result = CliRunner().invoke(cli.main, ["bench", str(bert), "--tokens", "4", "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    names = [row["contender"] for row in found["rows"]]
    assert names == ["dense float32", "torch, dynamic int8", "this model (0% sparse)"]
    assert all(row["ms"] > 0 for row in found["rows"]) and found["rows"][0]["gain"] == 1
    assert found["tokens"] == 4


def test_a_model_in_half_precision_is_measured_against_dense_ones_in_both(bert, tmp_path):
    from transformers import BertForMaskedLM

    gs.sparsify_(BertForMaskedLM.from_pretrained(bert).bfloat16(), "2:4").save_pretrained(tmp_path)
    found = measuring.measure(str(tmp_path), 4)
    names = [row["contender"].partition(" (")[0] for row in found["rows"]]
    assert names == ["dense bfloat16", "dense float32", "torch, dynamic int8", "this model"]


def test_the_layers_of_a_file_are_measured_and_shown_by_kind(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(3)))
    gs.save(gs.sparsify_(model, "75%", format=gs.CSR()), tmp_path / "m.safetensors")
    found = measuring.measure(str(tmp_path / "m.safetensors"), 2)
    assert [(row["name"], row["format"], row["sparsity"]) for row in found["rows"]] == [
        (str(i), "CSR()", 0.75) for i in range(3)
    ]
    text = io.StringIO()
    Console(file=text, width=120).print(measuring.table(found))
    assert text.getvalue().count("CSR()") == 1 and "75.0%" in text.getvalue()


def test_the_title_has_the_size_that_was_measured(bert):
    result = CliRunner().invoke(cli.main, ["bench", str(bert), "--tokens", "1000"])
    assert result.exit_code == 0 and ", 32 tokens, " in " ".join(result.stdout.split())  # a long title is wrapped
    found = {"model": "vit", "tokens": None, "threads": 1, "rows": [{"contender": "dense", "ms": 1.0, "gain": 1.0}]}
    assert measuring.table(found).title == "vit, 1 image, 1 thread"


def test_what_is_neither_a_suite_nor_a_model():
    result = CliRunner().invoke(cli.main, ["bench", "cpus"])
    assert result.exit_code == 2 and "'cpus' is neither a saved model" in result.output
