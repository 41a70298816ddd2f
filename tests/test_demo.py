"""The demo runs, on a model small enough for a test."""

import pytest

pytest.importorskip("sklearn")

from gossamer import demo


def test_the_demo_measures_four_models(monkeypatch, capsys):
    for name, value in {"WIDTH": 64, "EPOCHS": 2, "RECOVERY": 1}.items():
        monkeypatch.setattr(demo, name, value)
    rows = demo.run()
    assert [row.name for row in rows] == ["dense", "pruned 90 %", "90 %, anew every 20 steps", "grouped 1:4, 75 %"]
    assert rows[0].accuracy > 0.5
    assert rows[0].sparsity < 0.01
    assert all(row.sparsity > 0.3 for row in rows[1:])
    assert "256 tokens" in capsys.readouterr().out
