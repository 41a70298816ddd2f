"""Top-KAST (Jayakumar et al. 2020): compute with the top-k weights, update a larger set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
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
        **options: Any,
    ) -> None:
        self.backward, self.penalty = backward, penalty
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def _share_out(self, sparsity: float | None) -> float:
        found = super()._share_out(sparsity)
        if self.backward is None:
            self.backward = max(0.0, min(0.8, round(1 - 2 * (1 - found), 6)))
        if not 0 <= self.backward <= found:
            raise ValueError(f"TopKAST: backward={self.backward!r} must be from 0 to sparsity={found!r}")
        return found

    def choose(self, layer: Layer) -> Tensor:
        """The weights with the highest scores, by default the largest."""
        return select(layer, self.saliency(layer, layer.extra["dense"]))

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient in the larger set, and the pull there."""
        dense, inside = layer.extra["dense"], layer.mask
        (size,) = budgets([layer.shape], self.backward or 0.0, "uniform")
        wider = top(self.saliency(layer, dense), max(size, layer.budget)) | inside
        density = layer.budget / layer.size
        return (grad + self.penalty * torch.where(inside, dense, dense / density)) * wider
