"""Dynamic methods with a constant number of weights: some are dropped, and the same number grow."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.scores import Score
from gossamer.train import checks
from gossamer.train.base import Method
from gossamer.train.growth import Growth, as_growth
from gossamer.train.layers import Layer
from gossamer.train.rules import exchange, random


class Exchange(Method):
    """Base class of SET and RigL: the weights with the lowest scores are dropped, and others grow by another score.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`; ``score`` decides which weights are dropped.
    growth
        "gradient", "even gradient" (:class:`gossamer.Gradient` with ``even=True``), "random" or a score; or a number of
        steps, such as 8 or "mean of 8 steps": growth by the gradient averaged over this many steps before an update.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.RigL(model, optimizer, pattern=gs.NM(2, 4), every=4, until=100, growth="mean of 2 steps")
    >>> for _ in range(8):
    ...     model(torch.randn(4, 16)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    >>> model.weight.mask().view(-1, 4).sum(1).unique(), method.log()["updates"]
    (tensor([2]), 2)
    """

    #: How weights grow unless asked otherwise.
    usual: ClassVar[Growth] = Growth()

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        growth: Score | str | int | None = None,
        **options: Any,
    ) -> None:
        self.growth = as_growth(growth, self.usual)
        if self.growth.score is not None:
            checks.score(type(self).__name__, self.growth.score, gradients=True)
            self.needs_gradient = bool(self.growth.score.needs)
        self.gradient_steps = self.growth.steps
        super().__init__(model, optimizer, sparsity, **options)

    def update(self, layer: Layer) -> Tensor:
        """Replace a share of the weights."""
        return exchange(layer, int(self.share * layer.kept), drop=self.saliency, grow=self.prospect)

    def prospect(self, layer: Layer) -> Tensor:
        """The score of each position that isn't kept, as if its weight were 1."""
        if self.growth.score is None:
            return random(layer)
        return self.rate(self.growth.score, layer, torch.ones_like(layer.weight))
