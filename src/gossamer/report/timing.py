"""Measuring: functions run in turns, and the fastest run of each counts."""

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

    Taking turns lets whatever else the machine does hit all alike; the minimum is what it takes when nothing does. With
    one thread on a CPU it is CPU time, which others don't count in.

    Parameters
    ----------
    functions
        To be called without arguments.
    seconds
        To spend on each, at least `runs` runs, and not more than `most`.

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
            start = clock()
            function()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            best[name] = min(best[name], clock() - start)
    return best
