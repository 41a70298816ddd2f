"""Points in a terminal: a letter for each, on a logarithmic x axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import NamedTuple

#: Marks of points, in their order.
MARKS = ascii_letters


class Point(NamedTuple):
    """Where a point is; x is more than 0."""

    x: float
    y: float


def scatter(points: Sequence[Point], x: str, y: str, width: int = 64, height: int = 14) -> str:
    """Return a plot of up to 52 points as text.

    Parameters
    ----------
    points
        The first has the mark a, the next b.
    x, y
        What the axes are.
    width, height
        Of the plane, in characters. A point whose place is taken is drawn to the right of it, or to the left at the
        end of a line.

    Examples
    --------
    >>> print(scatter([Point(1.0, 2.0), Point(10.0, 1.5), Point(100.0, 1.0)], "ms", "loss", width=11, height=3))
    loss
     2.000 |a          |
           |     b     |
     1.000 |          c|
            1 ... 100 ms, logarithmic
    """
    if not points:
        return ""
    plane = [[" "] * width for _ in range(height)]
    xs, ys = [math.log(point.x) for point in points], [point.y for point in points]
    for mark, across, up in zip(MARKS, xs, ys, strict=False):
        row = plane[round((height - 1) * (1 - _share(up, ys)))]
        start = round((width - 1) * _share(across, xs))
        places = [*range(start, width), *range(start - 1, -1, -1)]
        free = next((place for place in places if row[place] == " "), None)
        if free is not None:
            row[free] = mark
    lines = [y]
    for number, row in enumerate(plane):
        label = f"{max(ys):.3f}" if not number else f"{min(ys):.3f}" if number == height - 1 else ""
        lines.append(f"{label:>6} |{''.join(row)}|")
    least, most = (end(point.x for point in points) for end in (min, max))
    lines.append(f"{'':8}{least:.3g} ... {most:.3g} {x}, logarithmic")
    return "\n".join(lines)


def _share(value: float, of: Sequence[float]) -> float:
    """Where a value is between the least and the largest, from 0 to 1; the middle if all are the same."""
    least, most = min(of), max(of)
    return (value - least) / (most - least) if most > least else 0.5
