"""Which weights grow: by which score, and by gradients of how many steps."""

from __future__ import annotations

import re
from typing import NamedTuple

from gossamer.scores import Gradient, Score, as_score

_MEAN = re.compile(r"mean of (\d+) steps?")


class Growth(NamedTuple):
    """The score by which weights grow (None: at random), and the number of steps whose gradients are averaged."""

    score: Score | None = Gradient()
    steps: int = 1


def as_growth(growth: Score | str | int | None, default: Growth | None = None) -> Growth:
    """Growth from the user's argument.

    Parameters
    ----------
    growth
        "gradient", "even gradient", "random", a score; or a number of steps, such as 8 or "mean of 8 steps": the
        averaged gradient. A weight that isn't kept is scored as if it were 1, so ``gs.Gradient()`` is the absolute
        gradient, and "even gradient" is ``gs.Gradient(even=True)``.
    default
        For None; the gradient of one step unless it is given.

    Examples
    --------
    >>> as_growth("mean of 8 steps"), as_growth(8) == as_growth("mean of 8 steps"), as_growth("random")
    (Growth(score=Gradient(), steps=8), True, Growth(score=None, steps=1))
    >>> as_growth("even gradient").score
    Gradient(even=True)
    """
    if growth is None:
        return default or Growth()
    if isinstance(growth, str) and (found := _MEAN.fullmatch(growth.strip())):
        growth = int(found[1])
    if isinstance(growth, int):
        if isinstance(growth, bool) or growth < 1:
            raise ValueError(f"growth={growth!r} must be a number of steps, from 1")
        return Growth(steps=growth)
    if growth == "random":
        return Growth(score=None)
    if growth == "even gradient":
        return Growth(Gradient(even=True))
    try:
        return Growth(score=as_score(growth))
    except ValueError as error:
        raise ValueError(f'{error}; or "mean of 8 steps": growth by gradients of several steps') from None
