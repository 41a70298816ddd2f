"""What a method of pruning is: how one weight is pruned, given what is known about it. And pruning by any score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gossamer.methods.scoring import missing, scores_of
from gossamer.patterns import Pattern
from gossamer.prune.gram import Gram
from gossamer.scores import Collector, Magnitude, Score
from gossamer.scores.collect import Mean, Stack


class Pruned(NamedTuple):
    """A weight after pruning, [rows, columns], what stayed of it, and what was out of the ordinary."""

    weight: Tensor
    mask: Tensor
    notes: tuple[str, ...] = ()


class Known(NamedTuple):
    """What calibration has found out about a weight."""

    gram: Gram | None = None
    """X X^T of the inputs that it meets."""
    gradients: Collector | None = None
    """What the method wanted to keep of its gradients."""
    offset: int = 0
    """The place of its first value among all weights that are pruned."""


class Method(ABC):
    """How a weight is pruned. A method of your own is a class with one method; pass an instance to ``oneshot``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> class KeepLargest(gs.prune.Method):
    ...     def prune(self, weight, pattern, known):
    ...         mask = pattern.select(weight)
    ...         return gs.prune.Pruned(weight * mask, mask)
    >>> model = torch.nn.Linear(8, 8, bias=False)
    >>> gs.prune.oneshot(model, "2:4", method=KeepLargest()).sparsity
    0.5
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """What has to be gathered first, as scores name it: "inputs", "grad" or "grads"."""

    per_sample: bool = True
    """Where gradients are needed: one for each sample, not for each batch?"""

    repairs: ClassVar[bool] = False
    """Does it change the values that stay?"""

    @abstractmethod
    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        """Prune a weight [rows, columns], float32 or float64; it is not changed."""

    def collector(
        self, pattern: Pattern, rows: int, columns: int, count: int, device: torch.device | str = "cpu"
    ) -> Collector | None:
        """What takes in `count` gradients of a weight; by default all of them, or their mean, as `needs` says."""
        if "grads" in self.needs:
            return Stack(rows, columns, count=count, device=device)
        return Mean(rows, columns, count=count, device=device) if "grad" in self.needs else None

    @property
    def name(self) -> str:
        """How reports call it."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class ByScore(Method):
    """Keep the values of highest score; repair nothing. ``oneshot`` makes one of any score.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> weight = torch.tensor([[1.0, -3.0]])
    >>> gs.prune.ByScore(gs.Magnitude()).prune(weight, gs.NM(1, 2), gs.prune.Known()).weight
    tensor([[ 0., -3.]])
    >>> gram = gs.prune.Gram(torch.diag(torch.tensor([100.0, 1.0]))[None])
    >>> gs.prune.ByScore(gs.Wanda()).prune(weight, gs.NM(1, 2), gs.prune.Known(gram)).weight
    tensor([[1., -0.]])
    """

    score: Score

    def __post_init__(self) -> None:
        if wanted := missing(self.score):
            raise ValueError(f"{self.score!r} needs {' and '.join(wanted)}, which no calibration data can give")

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the score needs."""
        return self.score.needs

    @property
    def per_sample(self) -> bool:  # type: ignore[override]
        """Only where each gradient counts: the mean is the same."""
        return "grads" in self.score.needs

    @property
    def name(self) -> str:
        """The score's."""
        return type(self.score).__name__.lower()

    def collector(
        self, pattern: Pattern, rows: int, columns: int, count: int, device: torch.device | str = "cpu"
    ) -> Collector | None:
        """What the score wants to keep of the gradients."""
        return self.score.collector(rows, columns, count, device)

    def scores(self, weight: Tensor, known: Known) -> Tensor | None:
        """The score of each value; None where calibration didn't reach the weight."""
        inputs = None if known.gram is None else known.gram.norms.to(weight.device)
        context = {} if known.gradients is None or known.gradients.empty else known.gradients.context
        if any({"inputs": inputs, **context}.get(need) is None for need in self.needs):
            return None
        return scores_of(self.score, weight, inputs=inputs, offset=known.offset, **context)

    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        scores = self.scores(weight, known)
        if scores is None:
            return uncalibrated(weight, pattern)
        mask = pattern.select_by_row(scores) if self.score.by_row else pattern.select(scores)
        return Pruned(weight * mask, mask)


def uncalibrated(weight: Tensor, pattern: Pattern) -> Pruned:
    """Prune by magnitude what no calibration data reached, and say so."""
    mask = pattern.select(Magnitude()(weight))
    return Pruned(weight * mask, mask, ("no calibration reached it: pruned by magnitude",))
