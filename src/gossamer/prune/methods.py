"""The base class of pruning methods, which prune one weight at a time, and pruning by any score."""

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
    """A weight after pruning, [rows, columns], its mask, and notes."""

    weight: Tensor
    mask: Tensor
    notes: tuple[str, ...] = ()


class Known(NamedTuple):
    """What calibration has computed for a weight."""

    gram: Gram | None = None
    """X X^T of its inputs."""
    gradients: Collector | None = None
    """Its gradients, as the method collects them."""
    offset: int = 0
    """The index of its first value among all pruned weights."""


class Method(ABC):
    """How a weight is pruned. Your own method is a class with one method; pass an instance to ``oneshot``.

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
    """What must be computed from calibration data first, as in scores: "inputs", "grad" or "grads"."""

    per_sample: bool = True
    """If gradients are needed: one for each sample, rather than for each batch?"""

    repairs: ClassVar[bool] = False
    """Does it change the kept values?"""

    @property
    def follows(self) -> bool:
        """Does it fit each layer to the dense model's outputs? Then the dense model runs beside the pruned one."""
        return False

    @abstractmethod
    def prune(self, weight: Tensor, pattern: Pattern, known: Known) -> Pruned:
        """Prune a weight [rows, columns], float32 or float64; it is not changed."""

    def collector(
        self, pattern: Pattern, rows: int, columns: int, count: int, device: torch.device | str = "cpu"
    ) -> Collector | None:
        """Return an object that collects `count` gradients of a weight: by default all of them, or their mean,
        depending on `needs`."""
        if "grads" in self.needs:
            return Stack(rows, columns, count=count, device=device)
        return Mean(rows, columns, count=count, device=device) if "grad" in self.needs else None

    @property
    def name(self) -> str:
        """Its name in reports."""
        return type(self).__name__.lower()


@dataclass(frozen=True)
class ByScore(Method):
    """Keep the values with the highest scores, and don't change them. ``oneshot`` creates one from any score.

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
        """The score's collector of gradients."""
        return self.score.collector(rows, columns, count, device)

    def scores(self, weight: Tensor, known: Known) -> Tensor | None:
        """The score of each value; None if calibration didn't reach the weight."""
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
    """Prune a weight that no calibration data reached by magnitude, with a note."""
    mask = pattern.select(Magnitude()(weight))
    return Pruned(weight * mask, mask, ("no calibration reached it: pruned by magnitude",))


def check_target(target: str) -> None:
    """Refuse a target of the outputs that isn't one."""
    if target not in ("model", "layer"):
        raise ValueError(f'target must be "model" or "layer", got {target!r}')
