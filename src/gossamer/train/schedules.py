"""When, and how much: schedules are pure functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

#: schedule(step, until, start, end) -> value: ``start`` at step 0, ``end`` from step ``until`` on.
Schedule = Callable[[int, int, float, float], float]


def _progress(step: int, until: int) -> float:
    return 1.0 if until <= 0 else min(max(step / until, 0.0), 1.0)


def constant(step: int, until: int, start: float, end: float = 0.0) -> float:
    """``start``, up to and including ``until``; then ``end``.

    Examples
    --------
    >>> [constant(step, 100, 0.3) for step in (0, 100, 101)]
    [0.3, 0.3, 0.0]
    """
    return start if step <= until else end


def linear(step: int, until: int, start: float, end: float = 0.0) -> float:
    """A straight line from ``start`` to ``end``.

    Examples
    --------
    >>> [linear(step, 100, 0.0, 0.9) for step in (0, 50, 100, 200)]
    [0.0, 0.45, 0.9, 0.9]
    """
    return start + (end - start) * _progress(step, until)


def cosine(step: int, until: int, start: float, end: float = 0.0) -> float:
    """Half a cosine from ``start`` to ``end``: what RigL and SRigL use for the drop fraction.

    Examples
    --------
    >>> [round(cosine(step, 100, 0.3), 3) for step in (0, 50, 100, 200)]
    [0.3, 0.15, 0.0, 0.0]
    """
    return end + (start - end) / 2 * (1 + math.cos(math.pi * _progress(step, until)))


def cubic(step: int, until: int, start: float, end: float = 0.0) -> float:
    """Fast first, slow in the end: the sparsity of gradual magnitude pruning (Zhu and Gupta 2017).

    Examples
    --------
    >>> [round(cubic(step, 100, 0.0, 0.8), 3) for step in (0, 50, 100, 200)]
    [0.0, 0.7, 0.8, 0.8]
    """
    return end + (start - end) * (1 - _progress(step, until)) ** 3


def one_cycle(step: int, until: int, start: float, end: float = 0.0) -> float:
    """Slow, fast, slow: an S-curve from ``start`` to ``end`` (one-cycle pruning, Hubens et al. 2021).

    Examples
    --------
    >>> [round(one_cycle(step, 100, 0.0, 0.9), 3) for step in (0, 20, 100)]
    [0.0, 0.084, 0.9]
    """

    def s_curve(t: float) -> float:
        return 1 / (1 + math.exp(-14 * t + 5))

    low, high = s_curve(0.0), s_curve(1.0)
    return start + (end - start) * (s_curve(_progress(step, until)) - low) / (high - low)


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "cubic": cubic,
    "one-cycle": one_cycle,
}


def as_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule by its name, or a function of your own.

    Examples
    --------
    >>> as_schedule("cosine") is cosine
    True
    """
    if callable(schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule={schedule!r} is not known; choose from {', '.join(SCHEDULES)}, or give a function")
    return SCHEDULES[schedule]
