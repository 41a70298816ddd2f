"""Schedules: pure functions from progress to the share of the change that is done.

Progress is 0 at the start and 1 at the end; values above 1 mean that the end has passed. The share is 0 at the start
and 1 at the end. `at_step` turns both into a value at a training step.
"""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]
"""Progress -> share of the way, both from 0 to 1."""


def constant(t: float) -> float:
    """Nothing happens until the end has passed.

    Examples
    --------
    >>> constant(0.5), constant(1.0), constant(1.01)
    (0.0, 0.0, 1.0)
    """
    return 0.0 if t <= 1 else 1.0


def linear(t: float) -> float:
    """Proportional to progress.

    Examples
    --------
    >>> linear(0.25), linear(2.0)
    (0.25, 1.0)
    """
    return _clipped(t)


def cosine(t: float) -> float:
    """Half a cosine, slow at both ends. RigL and SRigL use it to decay their drop fraction.

    Examples
    --------
    >>> round(cosine(0.25), 3), cosine(1.0)
    (0.146, 1.0)
    """
    return (1 - math.cos(math.pi * _clipped(t))) / 2


def cubic(t: float) -> float:
    """Fast at first, slow at the end: gradual magnitude pruning (Zhu and Gupta 2017).

    Examples
    --------
    >>> cubic(0.0), cubic(0.5), cubic(1.0)
    (0.0, 0.875, 1.0)
    """
    return 1 - (1 - _clipped(t)) ** 3


def one_cycle(t: float) -> float:
    """Slow, fast, slow: an S-curve (one-cycle pruning, Hubens et al. 2021).

    Examples
    --------
    >>> round(one_cycle(0.2), 3), one_cycle(1.0)
    (0.094, 1.0)
    """
    low, high = _sigmoid(0.0), _sigmoid(1.0)
    return (_sigmoid(_clipped(t)) - low) / (high - low)


def decay(t: float) -> float:
    """More than half in the first stage, then evenly: 2:8 in four stages keeps 5, 4, 3, 2 of 8, as in VENOM.

    Examples
    --------
    >>> [round(decay(t), 2) for t in (0.25, 0.5, 0.75, 1.0)]
    [0.55, 0.7, 0.85, 1.0]
    """
    return 0.4 + 0.6 * _clipped(t)


def at_once(t: float) -> float:
    """Everything in the first stage; the other stages only recover.

    Examples
    --------
    >>> at_once(0.1)
    1.0
    """
    return 1.0


SCHEDULES: dict[str, Schedule] = {
    "constant": constant,
    "linear": linear,
    "cosine": cosine,
    "cubic": cubic,
    "one-cycle": one_cycle,
    "decay": decay,
    "at once": at_once,
}


def as_schedule(schedule: str | Schedule) -> Schedule:
    """A schedule, from its name or from your own function.

    Examples
    --------
    >>> as_schedule("linear")(0.5), as_schedule(lambda t: t * t)(0.5)
    (0.5, 0.25)
    """
    if callable(schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise ValueError(
            f"unknown schedule {schedule!r}; choose from {', '.join(map(repr, SCHEDULES))}, or give a function"
        )
    return SCHEDULES[schedule]


def at_step(schedule: Schedule, step: int, until: int, start: float, end: float) -> float:
    """The value at a step, between `start` at step 0 and `end` at step `until`.

    Examples
    --------
    >>> [round(at_step(cubic, step, 100, 0.0, 0.8), 3) for step in (0, 50, 100, 200)]
    [0.0, 0.7, 0.8, 0.8]
    >>> [at_step(constant, step, 100, 0.3, 0.0) for step in (0, 100, 101)]
    [0.3, 0.3, 0.0]
    """
    progress = step / until if until > 0 else 1.0 + (step > until)
    return start + (end - start) * schedule(progress)


def _clipped(t: float) -> float:
    return min(max(t, 0.0), 1.0)


def _sigmoid(t: float) -> float:
    return 1 / (1 + math.exp(5 - 14 * t))
