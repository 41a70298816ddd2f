"""What the examples share: timing calls that take turns, and a table."""

import time
from collections.abc import Callable, Mapping
from typing import Any


def race(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Milliseconds of each call: the fastest of several turns, taken one after the other."""
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            before = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - before)
    return {name: 1e3 * b for name, b in best.items()}


def show(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print milliseconds, a row a thing measured and a column a library; the fastest is marked."""
    columns = list(next(iter(rows.values())))
    print(f"\n{title}\n{'':24}" + "".join(f"{c:>16}" for c in columns))
    for name, times in rows.items():
        fastest = min(times.values())
        cells = (f"{t:.2f} ms{'*' if t == fastest else ' '}" for t in times.values())
        print(f"{name:24}" + "".join(f"{c:>16}" for c in cells))
