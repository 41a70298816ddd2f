"""Top-KAST (Jayakumar et al. 2020): compute with the top-k weights, update a larger set."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.train.distributions import budgets
from gossamer.train.layers import Layer
from gossamer.train.rules import top
from gossamer.train.straight import Straight


class TopKAST(Straight):
    """Always sparse forward; gradients go to the weights that might come next too.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`; sparsity is that of the forward pass.
    backward
        Sparsity of the set that is updated; below ``sparsity``.
    penalty
        L2 pull of weights to zero, over the density for those that are updated but not computed with.

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
        sparsity: float = 0.9,
        *,
        backward: float = 0.8,
        penalty: float = 1e-4,
        **options: Any,
    ) -> None:
        if not 0 <= backward <= sparsity:
            raise ValueError(f"TopKAST: backward={backward!r} must be from 0 to sparsity={sparsity!r}")
        self.backward, self.penalty = backward, penalty
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def choose(self, layer: Layer) -> Tensor:
        """The largest weights."""
        return top(layer.extra["dense"].abs(), layer.budget)

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient in the larger set, and the pull there."""
        dense, inside = layer.extra["dense"], layer.mask
        (size,) = budgets([layer.shape], self.backward, "uniform")
        wider = top(dense.abs(), max(size, layer.budget)) | inside
        density = layer.budget / layer.size
        return (grad + self.penalty * torch.where(inside, dense, dense / density)) * wider
