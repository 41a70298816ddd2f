"""Measuring: functions run alternately, and the fastest run of each counts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, TypeVar

import torch

from gossamer.models.pack import truth

Key = TypeVar("Key", bound=Hashable)


def interleaved(
    functions: Mapping[Key, Callable[[], Any]], seconds: float = 0.1, *, runs: int = 5, most: int = 1000
) -> dict[Key, float]:
    """Return the seconds of each function: the minimum of interleaved runs.

    Because the runs are interleaved, other load on the machine affects all functions equally; the minimum is the time
    without it. With one thread on a CPU, CPU time is measured, which excludes other programs.

    Parameters
    ----------
    functions
        Functions without arguments.
    seconds
        Time to spend on each, with at least `runs` and at most `most` runs.

    Examples
    --------
    >>> times = interleaved({"little": lambda: sum(range(100)), "much": lambda: sum(range(100_000))}, 0.01)
    >>> times["little"] < times["much"]
    True
    """
    best = dict.fromkeys(functions, math.inf)
    clock = time.perf_counter if torch.cuda.is_initialized() else truth.clock()
    end, done = time.perf_counter() + seconds * len(functions), 0
    while done < runs or (time.perf_counter() < end and done < most):
        done += 1
        for name, function in functions.items():
            start, wall = clock(), time.perf_counter()
            function()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            # the CPU time of a virtual machine may stand still for some microseconds: then the wall clock counts
            best[name] = min(best[name], clock() - start or time.perf_counter() - wall)
    return best
