"""The benchmark of language models: a tiny one on a CPU, for every method, from the command line too."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import lm as published
from benchmarks import lm_tables, recovery, two_ways
from benchmarks.lm_plans import Plan
from gossamer.app import bench
from gossamer.app.bench import lm
from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.app.bench.lm_model import text_of
from gossamer.app.bench.lm_train import Setting
from gossamer.app.cli import main

TINY = Setting(steps=3, batch=2, context=8, layers=1, device="cpu", looks=1)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text("in the beginning was the word; " * 1500)
    return path


def test_the_command_line_trains_on_a_text(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lm, "_QUICK", TINY)
    monkeypatch.setattr(lm, "METHODS", METHODS[:3])
    done = CliRunner().invoke(main, ["bench", "lm", "--text", str(book), "--json"])
    results = json.loads(done.output)
    assert [row["name"] for row in results["trainings"]] == [case.name for case in METHODS[:3]]
    table, plot = bench.tables("lm", results)
    assert table.row_count == 3 and "not faster" in table.caption
    assert all(row["ms per token"] > 0 for row in results["trainings"])
    assert {"a", "b", "c"} <= set(str(plot)) and "ms per token" in str(plot)
    assert "does not exist" in CliRunner().invoke(main, ["bench", "lm", "--text", "no-such-book"]).output
    with pytest.raises(ValueError, match="reads no text"):
        bench.run("cpu", text=str(book))


def test_the_command_line_knows_texts_by_name(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(lm, "text_of", lambda name: asked.append(name) or text_of(book))
    monkeypatch.setattr(lm, "_QUICK", TINY)
    monkeypatch.setattr(lm, "METHODS", METHODS[:1])
    for name in ("code", "asv"):
        done = CliRunner().invoke(main, ["bench", "lm", "--text", name, "--json"])
        assert json.loads(done.output)["text"] == name
    assert asked == ["code", "asv"]


def test_published_trainings_share_a_machine(book: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        Case("dense", width=32),
        Case("distilled", "GMP", "90%", {"until": 0.75}, width=32, distil=0.5, trained=True),
        Case("smaller", width=16, distil=0.5),
        Case("wrong", "RigL", "90%", {"evry": 3}, width=32),
    ]
    monkeypatch.setitem(published.PLANS, "tiny", Plan(cases, steps=3))
    published.quality(["tiny", f"{book}:tiny:1"], TINY, str(book), tmp_path, tmp_path / "out.json", 1, seconds=60)
    found = json.loads((tmp_path / "out.json").read_text())
    rows = {(row["name"], row["seed"]): row for row in found}
    assert {seed for _, seed in rows} == {0, 1} and len(found) == 8
    for seed in (0, 1):
        taught = rows["distilled", seed]
        assert (taught["steps"], taught["text"], taught["of"]) == (3, "book", 3)
        assert rows["smaller", seed]["weights"] < rows["dense", seed]["weights"]
        assert "evry" in rows["wrong", seed]["error"]


def test_published_results_are_what_the_docs_show() -> None:
    results = lm_tables.HERE / "results"
    found, inference = (json.loads((results / f"{name}.json").read_text()) for name in ("lm", "lm-inference"))
    table = lm_tables.table(found, inference["rows"], inference["gpu rows"])
    assert (lm_tables.DOCS / "lm-table.md").read_text() == table
    assert (lm_tables.DOCS / "lm.svg").read_text() == lm_tables.picture(found, inference["rows"])
    assert two_ways.TABLE.read_text() == two_ways.table(json.loads(two_ways.RESULTS.read_text()))
    assert recovery.TABLE.read_text() == recovery.table(json.loads(recovery.RESULTS.read_text()))
