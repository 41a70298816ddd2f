"""All scores, by name."""

from __future__ import annotations

from .base import Score
from .fisher import Fisher
from .gradient import Gradient
from .hard_concrete import HardConcrete
from .magnitude import Magnitude
from .movement import Movement
from .random import Random
from .wanda import Wanda

SCORES: dict[str, type[Score]] = {
    "magnitude": Magnitude,
    "wanda": Wanda,
    "gradient": Gradient,
    "movement": Movement,
    "fisher": Fisher,
    "random": Random,
    "hard concrete": HardConcrete,
}


def as_score(score: Score | str) -> Score:
    """A score, from a score or its name.

    Examples
    --------
    >>> as_score("wanda"), as_score(Random(3))
    (Wanda(), Random(seed=3))
    """
    if isinstance(score, Score):
        return score
    if score not in SCORES:
        raise ValueError(f"unknown score {score!r}; there are {', '.join(map(repr, SCORES))}, or your own Score")
    return SCORES[score]()
