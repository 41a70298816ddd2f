"""The demo runs, on a model small enough for a test."""

import json

import pytest

pytest.importorskip("sklearn")

from gossamer import demo


@pytest.fixture
def small(monkeypatch):
    for name, value in {"WIDTH": 64, "EPOCHS": 2, "RECOVERY": 8, "SPARSITY": 0.75, "GROUPED": "1:4:g8"}.items():
        monkeypatch.setattr(demo, name, value)


def test_the_demo_measures_four_models_and_writes_a_page(small, tmp_path, capsys):
    rows = demo.run(tmp_path / "page.html")
    names = ["dense", "dynamic (RigL) 75%", "one-shot (SparseGPT) 75%", "gradual, grouped 1:4"]
    assert [row.name for row in rows] == names
    assert rows[0].accuracy > 0.5
    assert rows[0].sparsity < 0.01
    assert all(row.sparsity > 0.3 for row in rows[1:])
    assert all(set(row.micros) == {1, 256} for row in rows)
    assert capsys.readouterr() == ("", "")  # nobody watches: no bar, and the table is the command's business
    page = (tmp_path / "page.html").read_text()
    for text in (*names, "The demo", "Masks", "churn", "Accuracy against sparsity"):
        assert text in page
    assert "256 tokens" in "".join(str(column.header) for column in demo.table(rows).columns)
    assert json.loads(json.dumps(demo.plain(rows)))[0]["gain"] == {"1": 1.0, "256": 1.0}
