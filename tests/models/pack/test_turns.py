"""The judge of pack_, on machines that are made up: their clock advances as the functions run."""

import random

import pytest

from gossamer.models.pack.turns import in_turns

TRULY = {"dense": 2e-3, "packed": 1e-3, "other": 1.5e-3}


class Machine:
    """Runs functions that take `seconds`, each run as many times longer as `slower` says."""

    def __init__(self, seconds, slower=lambda: 1.0):
        self.now, self.runs, self.order = 0.0, dict.fromkeys(seconds, 0), []
        self.functions = {name: lambda name=name: self.run(name, seconds[name] * slower()) for name in seconds}

    def run(self, name, seconds):
        self.now += seconds
        self.runs[name] += 1
        self.order.append(name)

    def judge(self, seconds=0.03):
        return in_turns(self.functions, seconds, "dense", lambda: self.now)


def busy(seed):
    """A machine on which one run in twelve is undisturbed, and the others take two to three times as long."""
    draw = random.Random(seed)
    return lambda: 1.0 if draw.random() < 1 / 12 else draw.uniform(2.2, 3.0)


def by_minima(machine, turns):
    """The judge that minima of a few turns would be."""
    best = dict.fromkeys(machine.functions, float("inf"))
    for _ in range(turns):
        for name, function in machine.functions.items():
            start = machine.now
            function()
            best[name] = min(best[name], machine.now - start)
    return best


def test_a_quiet_machine_is_judged_by_few_turns():
    machine = Machine(TRULY)
    assert machine.judge() == pytest.approx(TRULY)
    assert set(machine.runs.values()) == {20}  # 0.03 s for each of three functions, of 4.5 ms together


def test_who_is_twice_as_fast_wins_on_a_busy_machine():
    misled = 0
    for seed in range(300):
        times = Machine(TRULY, busy(seed)).judge()
        assert times["packed"] < times["dense"] / 1.2, seed
        minima = by_minima(Machine(TRULY, busy(seed)), 5)
        misled += minima["packed"] > minima["dense"]
    assert misled > 20  # the machine is one that misleads


def test_long_calls_get_more_turns_on_a_busy_machine():
    """Five runs take longer than was to be spent; where they differ there are more, as long as patience lasts."""
    long = {name: 5 * seconds for name, seconds in TRULY.items()}
    quiet, noisy = Machine(long), [Machine(long, busy(seed)) for seed in range(20)]
    for machine in (quiet, *noisy):
        machine.judge()
    assert set(quiet.runs.values()) == {5}
    assert sum(machine.runs["dense"] for machine in noisy) > 7 * len(noisy)
    assert all(machine.now < 3 * 0.25 + 3 * sum(long.values()) for machine in noisy)


def test_a_close_verdict_takes_more_turns_and_patience_ends():
    clear, close = Machine(TRULY), Machine({"dense": 1e-3, "packed": 0.98e-3})
    clear.judge(), close.judge()
    assert min(close.runs.values()) > 5 * max(clear.runs.values())
    assert close.now < 2 * 0.25 + 2e-3
    slow = Machine({"dense": 0.3, "packed": 0.3})
    slow.judge()
    assert set(slow.runs.values()) == {5}
    quick = Machine({"dense": 1e-6, "packed": 1e-6})
    quick.judge()
    assert set(quick.runs.values()) == {300}


def test_each_turn_begins_with_another():
    machine = Machine(TRULY)
    machine.judge()
    turns = [machine.order[i : i + 3] for i in range(0, len(machine.order), 3)]
    assert all(sorted(turn) == sorted(TRULY) for turn in turns)
    assert {turn[0] for turn in turns} == set(TRULY)


def test_alone_there_is_nothing_to_compare():
    machine = Machine({"dense": 1e-3})
    assert machine.judge() == pytest.approx({"dense": 1e-3}) and machine.runs["dense"] == 30
