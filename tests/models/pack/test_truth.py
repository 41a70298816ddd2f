"""Measurements that can't be believed: measured again, marked, never kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import gossamer as gs
from gossamer.models.pack import truth, tune
from gossamer.models.pack.truth import clock, most, steady


def test_which_clock() -> None:
    torch.set_num_threads(1)
    assert clock() is time.thread_time
    torch.set_num_threads(2)
    try:
        assert clock() is time.perf_counter
    finally:
        torch.set_num_threads(1)


def test_possible_gains() -> None:
    assert most(0.25) == 12 and most(0.25, ratio=4) == 48 and most(0) == float("inf")


def series(*gains: float) -> Iterator[dict[str, float]]:
    return iter([{"dense": gain, "packed": 1.0, "worse": 50.0} for gain in gains])


def by(runs: Iterator[dict[str, float]], bound: float = 6.0) -> tuple[float, bool]:
    times, clear = steady(lambda: next(runs), "dense", bound)
    return times["dense"], clear


def test_an_impossible_gain_is_measured_again() -> None:
    assert by(series(980.0, 30.0, 1.8)) == (1.8, True)
    assert by(series(980.0, 30.0, 50.0, 7.0)) == (7.0, False)
    assert by(series(0.2)) == (0.2, True)  # a loss is possible


def test_on_a_busy_machine_one_thread_is_measured_and_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "disturbed", lambda: True)
    threads: list[int] = []

    def measure(runs: Iterator[dict[str, float]] = series(500.0, 2.0)) -> dict[str, float]:  # noqa: B008
        threads.append(torch.get_num_threads())
        return next(runs)

    torch.set_num_threads(2)
    try:
        times, clear = steady(measure, "dense", 6.0)
        assert times["dense"] == 2.0 and not clear  # the first gain was not possible
        assert threads == [1, 1] and torch.get_num_threads() == 2
        assert steady(lambda: {"dense": 1.0}, "dense", 6.0, alone=True)[1]
    finally:
        torch.set_num_threads(1)


def test_several_threads_that_only_give_impossible_gains_are_one_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth, "disturbed", lambda: False)
    torch.set_num_threads(2)
    try:
        assert by(series(90.0, 80.0, 70.0, 60.0, 3.0)) == (3.0, False)
    finally:
        torch.set_num_threads(1)


def test_when_a_measurement_is_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truth.os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert not truth.disturbed()  # one thread: CPU time
    monkeypatch.setattr(truth.torch, "get_num_threads", lambda: 2)
    assert truth.disturbed()
    monkeypatch.setattr(truth.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert not truth.disturbed()


@pytest.mark.parametrize("int8", [False, True])
def test_pack_marks_what_it_cannot_believe_and_keeps_nothing_of_it(
    int8: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: dict[str, object] = {}
    monkeypatch.setattr(tune, "load_known", dict)
    monkeypatch.setattr(tune, "store_known", lambda key, seconds: kept.update({key: seconds}))
    model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(64, 64)), "50%")
    if int8:
        gs.quantize_(model, "int8")
    x = torch.randn(4, 64)
    monkeypatch.setattr(truth, "_SLACK", 1e-9)
    report = gs.pack_(model, x)
    assert not report.layers[0].clear and not kept
    assert "x ?" in capsys.readouterr().out
    monkeypatch.setattr(truth, "_SLACK", 1e9)
    assert gs.pack_(model, x).layers[0].clear and len(kept) == 1


def test_remeasure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "_file", lambda: tmp_path / "pack.json")
    model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(64, 64)), "50%")
    x = torch.randn(4, 64)
    monkeypatch.setattr(truth, "_SLACK", 1e9)
    gs.pack_(model, x)
    calls = []
    monkeypatch.setattr(truth, "steady", lambda *a, real=steady, **k: (calls.append(1), real(*a, **k))[1])
    gs.pack_(model, x)
    assert not calls
    gs.pack_(model, x, remeasure=True)
    assert calls and not truth.is_measured_again()


def test_on_a_busy_machine_the_model_is_measured_with_one_thread_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(truth, "disturbed", lambda: True)
    monkeypatch.setattr(tune, "load_known", dict)
    model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(64, 64)), "50%")
    report = gs.pack_(model, torch.randn(4, 64))
    assert not report.layers[0].clear and not report.examples[0].clear
    assert capsys.readouterr().out.count("x ?") == 2
