"""GMP (Zhu and Gupta 2017): dense at first, then gradually fewer weights, by magnitude or another score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.schedules import Schedule, as_schedule, at_step
from gossamer.train.base import Method
from gossamer.train.groups import by_groups
from gossamer.train.layers import Layer
from gossamer.train.rules import select


class GMP(Method):
    """Gradual magnitude pruning.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`. The sparsity, or the pattern, is reached at ``until``. Of an n:m pattern,
        more and more groups of m columns have it, and the others keep all weights.
    schedule
        The schedule from ``start`` on: "cubic" (the default), "linear", "one-cycle", "cosine", "decay" or a function.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.GMP(model, optimizer, sparsity=0.9, every=1, until=2)
    >>> for _ in range(2):
    ...     model(torch.randn(4, 20)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    ...     print(round(model.weight.sparsity, 4))
    0.7867
    0.9
    >>> model = torch.nn.Linear(32, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.GMP(model, optimizer, pattern=gs.VNM("all", 2, 8), schedule="linear", every=1, until=4)
    >>> for _ in range(4):
    ...     model(torch.randn(4, 32)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    ...     print(int(model.weight.mask()[0].sum()), end=" ")
    26 20 14 8
    """

    needs_until: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        pattern: Pattern | str | None = None,
        schedule: str | Schedule | None = None,
        **options: Any,
    ) -> None:
        self.schedule = as_schedule(schedule or "cubic")
        super().__init__(model, optimizer, sparsity, pattern=pattern, **{"init": None, **options})

    def first_mask(self, layer: Layer) -> Tensor:
        """Everything."""
        return layer.everything()

    def due(self, step: int) -> bool:
        """Every ``every`` steps, and at the end."""
        return super().due(step) or step == self.until

    @property
    def done(self) -> float:
        """The share of the sparsity, or of the way to the pattern, that is reached."""
        now = at_step(self.schedule, self.steps - self.start, (self.until or 0) - self.start, 0.0, 1.0)
        return min(max(now, 0.0), 1.0)

    def apply(self) -> None:
        """Update all masks for the sparsity of this step."""
        if self.pattern is None:
            for layer, budget in zip(self.layers, self._budgets_now(), strict=True):
                layer.budget = budget
        super().apply()

    def _budgets_now(self) -> list[int]:
        """What each layer keeps at this step; a layer whose sparsity was given goes to it evenly with the others."""
        if not isinstance(self.distribution, Mapping):
            return self.budgets(self.done * self.sparsity)
        ends = zip(self.layers, self.budgets(self.sparsity), strict=True)
        return [layer.size - round(self.done * (layer.size - end)) for layer, end in ends]

    def update(self, layer: Layer) -> Tensor:
        """The highest scores of the kept weights."""
        pattern = layer.pattern
        if pattern is not None and pattern.choice(layer.outputs) is not None:
            return by_groups(pattern, self.saliency(layer), layer.mask, self.done)
        pattern = None if pattern is None else pattern.towards(self.done)
        return select(layer, self.saliency(layer), layer.mask, pattern)
