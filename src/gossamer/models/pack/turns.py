"""Times of functions, compared with each other, on a machine that may be busy; pack_ decides by them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import mean, median
from typing import Any, TypeVar

from gossamer.models.pack import truth

_RUNS = 5  # of each function, at least
_MOST = 300  # of each function
_PATIENCE = 0.25  # seconds for each function, unless the first runs take longer
_SPREAD = 1.2  # median over minimum, from which on a machine counts as busy
_CLOSE = 1.1  # two times that are nearer to each other may change places with a few more runs

Key = TypeVar("Key", bound=Hashable)


def in_turns(
    functions: Mapping[Key, Callable[[], Any]],
    seconds: float,
    first: Key,
    clock: Callable[[], float] | None = None,
) -> dict[Key, float]:
    """Return the seconds of each function: the mean of the fastest quarter of interleaved runs.

    On a quiet machine that is hardly more than the minimum. On one whose cores are shared a minimum is luck, if few
    runs are undisturbed: it compares the one such run of a function with runs of another that all were disturbed.
    More turns help against that, and so does looking at more runs than one.

    Parameters
    ----------
    functions
        To be called without arguments. They take turns, and each turn begins with another one, so that none always
        comes after the same.
    seconds
        To spend on each, at least five runs. If then `first` is not clearly faster or slower than the best of the
        others, or some function's times differ much, there are more turns: up to 300, and a quarter of a second for
        each function.
    first
        The function that the others are to beat.
    clock
        What tells the time; by default :func:`gossamer.models.pack.truth.clock`.

    Examples
    --------
    >>> times = in_turns({"little": lambda: sum(range(100)), "much": lambda: sum(range(100_000))}, 0.01, "much")
    >>> times["little"] < times["much"]
    True
    """
    clock = clock or truth.clock()
    order = list(functions)
    runs: dict[Key, list[float]] = {name: [] for name in order}
    begin, done = clock(), 0
    enough, patience = seconds * len(order), max(_PATIENCE, seconds) * len(order)
    while done < _MOST:
        spent = clock() - begin
        if done >= _RUNS and (spent >= patience or (spent >= enough and _settled(runs, first))):
            break
        for i in range(len(order)):
            name = order[(done + i) % len(order)]
            start = clock()
            functions[name]()
            runs[name].append(clock() - start)
        done += 1
    return {name: usual_time(times) for name, times in runs.items()}


def usual_time(times: Sequence[float]) -> float:
    """Return the mean of the fastest quarter.

    Examples
    --------
    >>> usual_time([5, 1, 9, 2, 8, 7, 6, 3])
    1.5
    """
    return mean(sorted(times)[: max(len(times) // 4, 1)])


def _settled(runs: Mapping[Key, Sequence[float]], first: Key) -> bool:
    """Would a few runs more change nothing?"""
    if any(median(times) > _SPREAD * min(times) for times in runs.values()):
        return False
    usual = {name: usual_time(times) for name, times in runs.items()}
    best = min((time for name, time in usual.items() if name != first), default=None)
    return best is None or not 1 / _CLOSE < best / usual[first] < _CLOSE
