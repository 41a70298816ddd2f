"""Weights that select new positions during training.

Every k steps, a weight with a rule is updated at all positions with a dense gradient, and then made sparse again by its
sparsifier: w <- S(w + update). This step costs as much as a dense one; between these steps the pattern is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.ops.sparsified import Output


@dataclass
class Rule:
    """How a weight is chosen again: how, every how many steps, and how many were made.

    Examples
    --------
    >>> import gossamer as gs
    >>> Rule(gs.Output.of((None, None, "90%", gs.CSR())), every=2, steps=1).due
    True
    """

    how: Output
    every: int
    steps: int = 0

    @property
    def due(self) -> bool:
        """Does the coming step choose again?"""
        return (self.steps + 1) % self.every == 0

    def check(self) -> None:
        """Refuse what could only fail later, in the middle of training."""
        if not isinstance(self.every, int) or self.every < 1:
            raise ValueError(f"every={self.every!r} must be a number of optimizer steps, from 1")
        for score in (self.how.inline.score, self.how.external.score):
            if score.needs:
                raise ValueError(
                    f"{type(score).__name__} needs {', '.join(score.needs)}, which an optimizer step doesn't give it: "
                    "choose again by a score of the weights alone, such as gs.Magnitude()"
                )
