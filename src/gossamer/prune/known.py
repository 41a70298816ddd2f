"""All methods, by name; every score is one too."""

from __future__ import annotations

from gossamer.prune.methods import ByScore, Method
from gossamer.prune.obs import OBS
from gossamer.prune.sparsegpt import SparseGPT
from gossamer.scores import Score, as_score
from gossamer.scores.known import SCORES
from gossamer.sparsifiers import Sparsifier

METHODS: dict[str, type[Method]] = {"sparsegpt": SparseGPT, "obs": OBS}


def as_method(method: str | Method | Score | Sparsifier) -> Method:
    """A method, from a method, its name, a score or its name, or a sparsifier (for its score).

    Examples
    --------
    >>> import gossamer as gs
    >>> as_method("sparsegpt").name, as_method("wanda"), as_method(gs.Random(3))
    ('sparsegpt', ByScore(score=Wanda()), ByScore(score=Random(seed=3)))
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, Sparsifier):
        return ByScore(method.score)
    if isinstance(method, Score) or method in SCORES:
        return ByScore(as_score(method))
    if method not in METHODS:
        known = ", ".join(map(repr, (*SCORES, *METHODS)))
        raise ValueError(f"unknown method {method!r}; known are {known}, or your own Score or Method")
    return METHODS[method]()
