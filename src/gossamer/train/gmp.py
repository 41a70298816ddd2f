"""GMP (Zhu and Gupta 2017): dense at first, then fewer and fewer weights, by magnitude."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.schedules import Schedule, as_schedule, at_step
from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.rules import magnitude, top


class GMP(Method):
    """Gradual magnitude pruning.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`. Sparsity is reached at ``until``.
    schedule
        Of the sparsity, from 0: "cubic", "linear", "one-cycle", "cosine" or a function.

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
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float = 0.9,
        *,
        schedule: str | Schedule = "cubic",
        **options: Any,
    ) -> None:
        self.schedule = as_schedule(schedule)
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def start(self, layer: Layer) -> Tensor:
        """Everything."""
        return layer.everything()

    def due(self, step: int) -> bool:
        """Every so often, and at the end."""
        return super().due(step) or step == self.until

    def apply(self) -> None:
        """Update all masks for the sparsity of this step."""
        now = min(max(at_step(self.schedule, self.steps, self.until or 0, 0.0, self.sparsity), 0.0), self.sparsity)
        for layer, budget in zip(self.layers, self.budgets(now), strict=True):
            layer.budget = budget
        super().apply()

    def update(self, layer: Layer) -> Tensor:
        """The largest of what is left."""
        return top(magnitude(layer), layer.budget, layer.mask)
