"""Static: masks that never change, the simplest sparse baseline."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.scores import Score
from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.rules import select


class Static(Method):
    """Train with fixed masks.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.
    score
        The masks keep the weights with the highest scores; None: random masks.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    >>> gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
    Static(2 layers, step 0, sparsity 90.00%)
    """

    dynamic = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        score: Score | str | None = None,
        **options: Any,
    ) -> None:
        self._at_random = score is None
        super().__init__(model, optimizer, sparsity, score=score, **options)

    def first_mask(self, layer: Layer) -> Tensor:
        """Random, or the weights with the highest scores."""
        return super().first_mask(layer) if self._at_random else select(layer, self.saliency(layer))
