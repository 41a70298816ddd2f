"""Functions in turns: how often, in which order. No test here looks at a time."""

import math

import pytest

from gossamer.models.pack import truth
from gossamer.report import timing
from gossamer.report.timing import interleaved


def test_functions_take_turns_at_least_so_often():
    seen = []
    times = interleaved({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, seconds=0, runs=3)
    assert seen == ["a", "b"] * 3 and list(times) == ["a", "b"]
    assert all(0 <= t < math.inf for t in times.values())


def test_by_default_five_runs():
    seen = []
    interleaved({1: lambda: seen.append(1)}, seconds=0)
    assert len(seen) == 5


def test_not_more_often_than_most():
    seen = []
    interleaved({"a": lambda: seen.append("a")}, seconds=3600, runs=1, most=7)
    assert len(seen) == 7


def test_no_functions_and_functions_that_fail():
    assert interleaved({}, seconds=0) == {}
    with pytest.raises(ZeroDivisionError):
        interleaved({"a": lambda: 1 / 0}, seconds=0)


def test_a_clock_that_stands_still_gives_way_to_the_wall_clock(monkeypatch):
    monkeypatch.setattr(truth, "clock", lambda: lambda: 5.0)
    walls = iter([0.0, 1.0, 3.0, 4.0])  # when all runs end, one run, and whether there is time for another
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(walls))
    assert interleaved({"a": lambda: None}, seconds=0, runs=1, most=1) == {"a": 2.0}
