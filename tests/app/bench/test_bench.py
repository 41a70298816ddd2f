"""The room of benchmarks: suites are found, run quickly, and are shown."""

import json
import sys
from pathlib import Path

import pytest
import torch

from gossamer.app import bench
from gossamer.app.bench import cpu
from gossamer.app.bench.show import tables_of


def test_suites_of_the_package_and_of_a_clone(tmp_path, monkeypatch):
    assert bench.suite("pruning").__name__ == "gossamer.app.bench.pruning"
    with pytest.raises(ValueError, match="there are cpu, gpu"):
        bench.suite("tpu")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "compiler.py").write_text("def run(quick):\n    return {'quick': quick}\n")
    monkeypatch.setattr(bench, "_ROOTS", (tmp_path,))
    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [n for n in sys.modules if n.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    assert bench.run("compiler", quick=True) == {"quick": True}
    monkeypatch.delitem(sys.modules, "benchmarks.compiler")
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    with pytest.raises(NotImplementedError, match=r"benchmarks/gpu\.py"):
        bench.suite("gpu")


def test_cpu_quick_measures_and_shows(monkeypatch):
    monkeypatch.setattr(cpu, "SHAPES", ((64, 64),))
    threads = torch.get_num_threads()
    results = cpu.run(quick=True, parts=("linear",))
    assert torch.get_num_threads() == threads
    names = {row["name"] for row in results["linear"]}
    assert {"dense", "unstructured 90%", "grouped 1:10", "torch CSR 90%"} <= names
    assert all(row["us"] > 0 for row in results["linear"])
    (table,) = bench.tables("cpu", results)
    assert table.row_count == len(names)
    gains = cpu.gains(results["linear"])
    assert gains[1, 1, "dense"] == 1.0


def test_published_results_of_pruning_become_tables():
    path = Path(__file__).parents[3] / "benchmarks" / "results" / "pruning.json"
    results = json.loads(path.read_text())
    for found in results["speed"]["cpu"], results["speed"]["elapsed"]:
        found["sparsegpt"].setdefault("size", 4096)
    titles = [table.title for table in bench.tables("pruning", results)]
    assert len(titles) == 5
    assert "accuracy" in titles[0]


def test_any_results_become_tables():
    results = {"a": 1, "text": "two\nlines", "part": {"rows": [{"x": 1.5, "y": None}, {"z": (2, 3)}]}, "none": []}
    figures, rows = tables_of(results)
    assert figures.row_count == 1
    assert rows.title == "part rows"
    assert [str(column.header) for column in rows.columns] == ["x", "y", "z"]
