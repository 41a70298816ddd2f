"""The suite of pruning: what it measures, on a small network; and its tables."""

import functools

import pytest
import torch
from torch import nn

from gossamer.app.bench import pruning


def small(*_):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).eval()


def test_every_method_at_the_same_sparsity(monkeypatch):
    images, labels = torch.rand(40, 1, 8, 8), torch.arange(40) % 10
    monkeypatch.setattr(pruning, "digits", lambda: ((images, labels), (images, labels)))
    monkeypatch.setattr(pruning, "small_cnn", small)
    found = pruning.cnn()
    assert [(r["pattern"], r["method"]) for r in found["rows"]][:5] == [
        ("2:4", "magnitude"), ("2:4", "wanda"), ("2:4", "sparsegpt"), ("2:4", "obs, hessian"), ("70%", "magnitude"),
    ]  # fmt: skip
    assert len(found["rows"]) == 16
    errors = {(r["pattern"], r["method"]): r["error"] for r in found["rows"]}
    assert all(errors[p, "sparsegpt"] < errors[p, "magnitude"] for p in ("70%", "80%", "90%"))
    with torch.no_grad():
        right = float((small()(images).argmax(1) == labels).float().mean())
    assert found["dense"] == pytest.approx(right)


def test_times_of_both_clocks(monkeypatch):
    monkeypatch.setattr(pruning, "_fisher", functools.partial(pruning._fisher, columns=64, count=8))
    before = torch.get_num_threads()
    found = pruning.speed(32, 64)
    assert torch.get_num_threads() == before and found["threads"] == before
    gpt, fisher = found["cpu"]["sparsegpt"], found["elapsed"]["fisher"]
    assert gpt["size"] == 32 and gpt["ratio"] == pytest.approx(gpt["seconds"] / gpt["reference"])
    assert gpt["reference"] == pytest.approx(gpt["product"] * 7 / 6)  # 7/3 n^3 operations, where a product has 2 n^3
    assert fisher["gradients"] == 8 and fisher["block"] % 8 == 0
    (table,) = pruning.tables({"speed": found})
    assert table.row_count == 4


def test_the_clock_follows_the_threads(monkeypatch):
    monkeypatch.setattr(pruning.time, "process_time", iter([1.0, 3.0]).__next__)
    monkeypatch.setattr(pruning.time, "perf_counter", iter([1.0, 8.0]).__next__)
    monkeypatch.setattr(pruning.torch, "get_num_threads", lambda: 1)
    assert pruning._timed(lambda: None) == 2.0
    monkeypatch.setattr(pruning.torch, "get_num_threads", lambda: 2)
    assert pruning._timed(lambda: None) == 7.0


def test_parts_that_are_asked_for(monkeypatch):
    monkeypatch.setitem(pruning.QUICK, "cnn", lambda: {"dense": 1.0, "rows": []})
    monkeypatch.setitem(pruning.PARTS, "quality", lambda: {"all": True})
    assert pruning.run(quick=True, parts=["cnn"])["cnn"] == {"dense": 1.0, "rows": []}
    assert pruning.run(quick=False, parts=["quality"])["quality"] == {"all": True}


def test_a_table_by_pattern_and_method():
    rows = [{"pattern": "2:4", "method": "a", "x": 0.5}, {"pattern": "90%", "method": "b", "x": 0.25}]
    table = pruning._by_method("title", rows, "x")
    assert [str(c.header) for c in table.columns] == ["pattern", "a", "b"]
    assert list(table.columns[1].cells) == ["50.0%", ""] and list(table.columns[2].cells) == ["", "25.0%"]
