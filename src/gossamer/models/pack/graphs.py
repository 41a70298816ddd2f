"""Times of calls on a GPU, compared with each other: of their kernels only, by CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import ceil
from statistics import median
from typing import Any, TypeVar

import torch

_LONG = 500e-6  # seconds of a graph, at least
_FIRST = 3  # replays that do not count

Key = TypeVar("Key", bound=Hashable)
Call = Callable[[], Any]


def replayed(
    calls: Mapping[Key, Sequence[Call]], replays: int = 20, device: torch.device | None = None
) -> dict[Key, float]:
    """Return the seconds of one call of each contender: the median of graphs of its calls, replayed in turn.

    Starting a graph takes some microseconds. Every graph repeats its calls for half a millisecond, so that this is as
    much of everyone's time, and little of it; in graphs of one round it would count for more the fewer calls there are.

    Parameters
    ----------
    calls
        Of each contender, a round: of a weight and its copies, for instance. What they need is kept by them.
    replays
        Of each graph.
    device
        That the calls run on; the current one if None.
    """
    graphs, counts = {}, {}
    for name, each in calls.items():
        once = capture(each, device)
        rounds = max(1, ceil(_LONG / min(elapsed(once) for _ in range(3))))
        graphs[name], counts[name] = capture([*each] * rounds, device), len(each) * rounds
    times: dict[Key, list[float]] = {name: [] for name in calls}
    for _ in range(_FIRST + replays):
        for name, graph in graphs.items():
            times[name].append(elapsed(graph) / counts[name])
    return {name: median(each[_FIRST:]) for name, each in times.items()}


def elapsed(graph: torch.cuda.CUDAGraph) -> float:
    """Return the seconds of one replay."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def capture(calls: Sequence[Call], device: torch.device | None = None) -> torch.cuda.CUDAGraph:
    """Return a graph of calls, each made once before: what is compiled or allocated then is no part of it."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    return graph
