"""The demo runs, on a model small enough for a test."""

import json

import pytest
from click.testing import CliRunner

pytest.importorskip("sklearn")

from gossamer.app import demo
from gossamer.app.cli import main


@pytest.fixture
def small(monkeypatch):
    settings = {"WIDTH": 64, "EPOCHS": 2, "RECOVERY": 8, "SPARSITY": 0.75, "GROUPED": "1:4:g8", "SECONDS": 0.01}
    for name, value in settings.items():
        monkeypatch.setattr(demo, name, value)


def test_the_demo_measures_four_models_and_writes_a_page(small, tmp_path):
    result = CliRunner().invoke(main, ["demo", "--report", str(tmp_path / "page.html"), "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)["rows"]  # nobody watches: no bar, and nothing but the JSON
    names = ["dense", "dynamic (RigL) 75%", "one-shot (SparseGPT) 75%", "gradual, grouped 1:4"]
    assert [row["name"] for row in rows] == names
    assert rows[0]["accuracy"] > 0.5
    assert rows[0]["sparsity"] < 0.01
    assert all(row["sparsity"] > 0.3 for row in rows[1:])
    assert all(set(row["micros"]) == {"1", "256"} for row in rows)
    assert rows[0]["gain"] == {"1": 1.0, "256": 1.0}
    page = (tmp_path / "page.html").read_text()
    for text in (*names, "The demo", "Masks", "churn", "Accuracy against sparsity"):
        assert text in page


def test_the_table_shows_gains_over_the_first_row():
    rows = [demo.Row(name, 0.0, 0.9, "Dense()", 1.0, {1: us, 256: 10 * us}) for name, us in (("a", 8.0), ("b", 2.0))]
    table = demo.table(rows)
    assert [str(c.header) for c in table.columns][-4:] == ["1 token", "gain", "256 tokens", "gain"]
    assert list(table.columns[-1].cells) == ["1.0x", "4.0x"]


def test_parts_are_announced_once_in_a_pipe(capsys):
    told = []
    tell = demo.announced(lambda *what: told.append(what))
    for what in ("dense", "dense", "packing"):
        tell(what, None, 1)
    assert capsys.readouterr().err == "demo: dense ...\ndemo: packing ...\n"
    assert told == [("dense", None, 1), ("dense", None, 1), ("packing", None, 1)]
