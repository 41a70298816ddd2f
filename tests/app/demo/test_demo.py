"""The demo runs, on a model small enough for a test."""

import json

import pytest
import torch
from click.testing import CliRunner

pytest.importorskip("transformers")

from gossamer.app.cli import main
from tests.app.demo.beds import shrink


def test_the_demo_measures_four_models_and_writes_a_page(monkeypatch, tmp_path):
    shrink(monkeypatch)
    monkeypatch.setattr("gossamer.progress.SHORTEST", 0.0)  # a line for each step
    threads = torch.get_num_threads()
    result = CliRunner().invoke(main, ["demo", "--report", str(tmp_path / "page.html"), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]  # nobody watches: no bar, and nothing but the JSON
    names = ["dense float32", "dense int8", "2:4 int8", "1:4 int8, trained"]
    assert [row["name"] for row in rows] == names
    assert [round(row["sparsity"], 2) for row in rows[2:]] == [0.5, 0.75]  # trained, and still sparse
    assert rows[0]["cosine"] == pytest.approx(1)
    assert rows[1]["cosine"] > 0.99  # rounded only
    assert all(-1 <= row["cosine"] <= 1.001 and 0 <= row["found"] <= 1 for row in rows)
    assert rows[0]["gain"] == {"1 x 16 tokens": 1.0, "8 x 64 tokens": 1.0}
    page = (tmp_path / "page.html").read_text()
    for text in (*names, "The demo", "Masks", "loss", "Accuracy against sparsity"):
        assert text in page
    assert "demo: 1 of" in result.stderr and "pruning to 2:4" in result.stderr
    assert torch.get_num_threads() == threads
