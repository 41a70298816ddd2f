"""Top-KAST (Jayakumar et al. 2020): compute with the top-k weights, update a larger set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.scores import Magnitude
from gossamer.train import checks
from gossamer.train.distributions import budgets
from gossamer.train.layers import Layer
from gossamer.train.rules import select, top
from gossamer.train.straight import Straight


class TopKAST(Straight):
    """Compute with the largest weights, and update a larger set, so that other weights can replace them.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`; the sparsity, or the pattern, is that of the forward pass. From ``until``
        on, masks are fixed; None: they follow the weights until the end.
    backward
        Sparsity of the set that is updated, below ``sparsity``: 0.8 by default, or less so that it is at least twice as
        large as the set of the forward pass.
    penalty
        L2 penalty of the weights; divided by the density for those that are updated but not used.
    refresh
        Optimizer steps between selections of both sets. Selecting costs more than the rest of a step on a GPU: a step
        of a language model took 3.3 times as long as a dense one with the default of 1.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.TopKAST(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.9, backward=0.8)
    TopKAST(1 layers, step 0, sparsity 90.00%)
    """

    dynamic = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        backward: float | None = None,
        penalty: float = 1e-4,
        refresh: int = 1,
        **options: Any,
    ) -> None:
        checks.refresh(type(self).__name__, refresh)
        self.backward, self.penalty, self.refresh = backward, penalty, refresh
        self._updated: dict[str, int] = {}  # the size of each layer's larger set
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def _share_out(self, sparsity: float | None) -> float:
        found = super()._share_out(sparsity)
        if self.backward is None:
            self.backward = max(0.0, min(0.8, round(1 - 2 * (1 - found), 6)))
        if not 0 <= self.backward <= found:
            raise ValueError(f"TopKAST: backward={self.backward!r} must be from 0 to sparsity={found!r}")
        for layer in self.layers:
            (size,) = budgets([layer.shape], self.backward, "uniform")
            self._updated[layer.name] = max(size, layer.budget)
        return found

    @property
    def fixed(self) -> bool:
        """Are masks fixed in the current step?"""
        return super().fixed or (self.steps + 1) % self.refresh != 0

    def choose(self, layer: Layer) -> Tensor:
        """The weights with the highest scores, by default the largest."""
        scores = self.saliency(layer, layer.extra["dense"])
        mask = select(layer, scores) if layer.pattern is not None else self._top(layer, scores, layer.budget)
        if self.refresh > 1:
            layer.extra["updated"] = self._top(layer, scores, self._updated[layer.name]) | mask
        return mask

    def _top(self, layer: Layer, scores: Tensor, count: int) -> Tensor:
        """The highest scores. Weights have no NaN when methods choose, and then magnitudes have none."""
        return top(scores, count, checked=isinstance(self.score, Magnitude))

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient in the larger set, and the pull there."""
        dense, inside = layer.extra["dense"], layer.mask
        wider = layer.extra.get("updated")
        if wider is None:
            wider = self._top(layer, self.saliency(layer, dense), self._updated[layer.name]) | inside
        density = layer.budget / layer.size
        return (grad + self.penalty * torch.where(inside, dense, dense / density)) * wider
