"""How much of the way to the final pattern is done: functions from time to share, both 0 to 1."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]


def cubic(t: float) -> float:
    """Fast at first, while there is much to spare, then slower and slower (Zhu and Gupta 2017).

    Examples
    --------
    >>> cubic(0.0), cubic(0.5), cubic(1.0)
    (0.0, 0.875, 1.0)
    """
    return 1 - (1 - t) ** 3


def linear(t: float) -> float:
    """The same each time.

    Examples
    --------
    >>> linear(0.25)
    0.25
    """
    return t


def cosine(t: float) -> float:
    """Slow at both ends.

    Examples
    --------
    >>> round(cosine(0.25), 3)
    0.146
    """
    return (1 - math.cos(math.pi * t)) / 2


def decay(t: float) -> float:
    """Almost half of the way the first time, then evenly: 2:8 in four stages keeps 5, 4, 3, 2 of 8, as VENOM does.

    Examples
    --------
    >>> [round(decay(t), 2) for t in (0.25, 0.5, 0.75, 1.0)]
    [0.55, 0.7, 0.85, 1.0]
    """
    return 0.4 + 0.6 * t


def at_once(t: float) -> float:
    """All of it the first time; what follows is recovery.

    Examples
    --------
    >>> at_once(0.1)
    1.0
    """
    return 1.0


SCHEDULES: dict[str, Schedule] = {
    "cubic": cubic,
    "linear": linear,
    "cosine": cosine,
    "decay": decay,
    "at once": at_once,
}


def as_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule, from itself or its name.

    Examples
    --------
    >>> as_schedule("linear")(0.5)
    0.5
    """
    if callable(schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise ValueError(f"unknown schedule {schedule!r}; there are {', '.join(map(repr, SCHEDULES))}, or a function")
    return SCHEDULES[schedule]
