"""Measurements on a busy machine: which clock to use, which gains are possible, and when to measure again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch

_SLACK = 3.0  # a dense product may reach a third of what the machine could do
_TRIES = 4
_BUSY = 0.75  # load for each core, from which on others take time from several threads

Key = TypeVar("Key", bound=Hashable)
_AGAIN: ContextVar[bool] = ContextVar("measure again", default=False)


def clock() -> Callable[[], float]:
    """Return what tells the time of work on the CPU: with one thread its CPU time, which other programs don't count in.

    Several threads wait for each other, and only the wall clock tells how long.

    Examples
    --------
    >>> import time, torch
    >>> torch.set_num_threads(1)
    >>> clock() is time.thread_time
    True
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def most(density: float, ratio: float = 1.0) -> float:
    """Return the largest gain over a dense float layer that the operations and bytes saved allow, with some slack.

    Parameters
    ----------
    density
        Values kept over all: a sparse layer multiplies and reads at least that share.
    ratio
        How many more products an instruction computes; 4 for eight bits.

    Examples
    --------
    >>> most(0.5), most(0.1, ratio=4)
    (6.0, 120.0)
    """
    return _SLACK * ratio / density if density else float("inf")


def steady(
    measure: Callable[[], dict[Key, float]], first: Key, bound: float, alone: bool = False
) -> tuple[dict[Key, float], bool]:
    """Measure until the result can be believed, at most four times; return it, and whether it can.

    A gain above the bound can't. Nor can any measurement of several threads on a busy machine, where one waits for
    another that isn't running: then one thread is measured, by its CPU time, and the result is returned as doubtful.

    Parameters
    ----------
    measure
        Returns the seconds of some functions.
    first
        The one that the others are compared with.
    bound
        The largest gain that is possible: :func:`most`.
    alone
        Does nothing else disturb it, as on a GPU?

    Examples
    --------
    >>> wrong, right = {"dense": 98e-6, "packed": 0.1e-6}, {"dense": 2e-6, "packed": 1e-6}
    >>> runs = iter([wrong, right])
    >>> steady(lambda: next(runs), "dense", bound=6, alone=True) == (right, True)
    True
    >>> steady(lambda: wrong, "dense", bound=6)[1]
    False
    """
    if alone or not disturbed():
        for _ in range(_TRIES):
            times = measure()
            if _gain(times, first) <= bound:
                return times, True
        if alone or torch.get_num_threads() == 1:
            return times, False
    with one_thread():
        for _ in range(_TRIES):
            times = measure()
            if _gain(times, first) <= bound:
                break
    return times, False


def _gain(times: dict[Key, float], first: Key) -> float:
    others = [seconds for name, seconds in times.items() if name != first]
    return times[first] / max(min(others), 1e-12) if others else 1.0


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch uses one thread.

    Examples
    --------
    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def disturbed() -> bool:
    """May other programs disturb a measurement? Not that of one thread, by its CPU time."""
    busy = os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
    return busy and torch.get_num_threads() > 1


@contextmanager
def measuring_again(wanted: bool) -> Iterator[None]:
    """Inside, what was measured before is not looked at, if that is wanted."""
    token = _AGAIN.set(wanted)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def is_measured_again() -> bool:
    """Is what was measured before not to be looked at?"""
    return _AGAIN.get()
