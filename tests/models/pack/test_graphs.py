"""Timing by graphs, with graphs and a clock of the test's own: no GPU needed."""

import itertools

import pytest

from gossamer.models.pack import graphs as pack_graphs

START = 7e-6  # seconds that starting a graph takes


@pytest.fixture
def captured(monkeypatch):
    made = []

    def capture(calls, device=None):
        made.append([call() for call in calls])
        return made[-1]

    monkeypatch.setattr(pack_graphs, "capture", capture)
    monkeypatch.setattr(pack_graphs, "elapsed", lambda graph: START + sum(graph))
    return made


def test_starting_a_graph_counts_for_nobody(captured):
    times = pack_graphs.replayed({"large": [lambda: 30e-6] * 2, "small": [lambda: 6e-6] * 8, "slow": [lambda: 2e-3]})
    assert times["large"] == pytest.approx(30e-6, rel=0.02)
    assert times["small"] == pytest.approx(6e-6, rel=0.02)
    assert times["slow"] == pytest.approx(2e-3, rel=0.01)
    assert all(len(graph) % size == 0 for graph, size in zip(captured[1::2], (2, 8, 1), strict=True))  # whole rounds


def test_the_median_counts_and_the_first_replays_do_not(captured, monkeypatch):
    clock = itertools.count(100, -1)
    monkeypatch.setattr(pack_graphs, "elapsed", lambda graph: float(next(clock)))
    # three to know its length, three that do not count, then 94 to 90
    assert pack_graphs.replayed({"one": [lambda: 0.0]}, replays=5) == {"one": 92.0}
