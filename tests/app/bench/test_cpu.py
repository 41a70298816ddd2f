"""The suite of the CPU: what is measured, and what its figures mean. No time is asserted."""

import pytest
import torch

from gossamer.app.bench import cpu


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Every function is called once, and has taken as many seconds as its name is long."""

    def interleaved(calls, seconds):
        return {name: len(name) * 1e-6 for name, call in calls.items() if call() is not None}

    monkeypatch.setattr(cpu, "interleaved", interleaved)


def no(*_):
    pass


def test_gains_by_hand():
    def row(shape, name, us):
        return {"threads": 1, "shape": shape, "tokens": 4, "name": name, "us": us}

    rows = [row((2, 2), "dense", 8.0), row((2, 2), "CSR", 2.0), row((4, 2), "dense", 9.0), row((4, 2), "CSR", 9.0)]
    assert cpu.gains(rows) == {(1, 4, "dense"): 1.0, (1, 4, "CSR"): pytest.approx(2.0)}  # the mean of 4 and 1


def test_operations_a_second():
    assert cpu._row(1, (8, 8), 10, "dense", 1e-6, 64)["gflops"] == pytest.approx(2 * 64 * 10 / 1e-6 / 1e9)


def test_one_layer_in_every_format():
    rows = cpu.linear(1, (1, 3), 0.0, no, ((64, 96),))
    names = {row["name"] for row in rows}
    assert {"dense", "torch CSR 90%"} | {name for name, *_ in cpu.FORMATS} <= names
    assert {row["tokens"] for row in rows} == {1, 3}
    shares = {row["name"]: row["of_dense"] for row in rows if "of_dense" in row}
    assert shares["dense"] == 1 and shares["unstructured 95%"] < shares["unstructured 75%"] < 1
    assert "torch CSR 90%" not in shares


def test_forward_and_backward_count_three_products():
    rows = cpu.training(1, no, ((32, 48),), tokens=(2,))
    dense = next(row for row in rows if row["name"] == "dense")
    assert dense["gflops"] * 1e9 * dense["us"] / 1e6 == pytest.approx(2 * 3 * 32 * 48 * 2)
    assert {row["name"] for row in rows} == {"dense", "unstructured 90%", "grouped 1:10", "CSR 90%"}


def test_threads_are_put_back(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(cpu, "linear", lambda *a: torch.set_num_threads(before + 1) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        cpu.run(quick=True, parts=("linear",))
    assert torch.get_num_threads() == before


def test_tables_of_all_parts():
    rows = [
        {"threads": 1, "shape": (2, 2), "tokens": 4, "name": name, "us": us, "gflops": 1.0}
        for name, us in (("dense", 8.0), ("CSR", 2.0))
    ]
    encoder = [{"threads": 1, "batch": 1, "layers": 2, "name": name, "us": 1e3} for name in ("dense", "CSR")]
    found = list(cpu.tables({"ceilings": {"fma_gflops": 10.0}, "linear": rows, "training": rows, "encoder": encoder}))
    assert [table.row_count for table in found] == [2, 2, 2]
    assert "share of the FMA ceiling" in found[0].title and "2 layers of BERT-base" in found[2].title
    assert "ceiling" not in next(cpu.tables({"ceilings": {}, "linear": rows})).title


def test_a_block_is_an_encoder_layer():
    block, x = cpu.Block(24, 3), torch.randn(2, 5, 24)
    assert block(x).shape == x.shape and sum(isinstance(m, torch.nn.Linear) for m in block.modules()) == 6
