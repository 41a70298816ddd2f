"""STE: any pattern, learnt by the straight-through estimator; SR-STE (Zhou et al. 2021): with decay of what is out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.sparsifiers import Sparsifier, as_sparsifier
from gossamer.train.layers import Layer
from gossamer.train.straight import Straight


class STE(Straight):
    """Compute with the sparse weights, update all of them by the gradient of the sparse ones.

    Parameters
    ----------
    model, optimizer, options
        See :class:`gossamer.train.Method`.
    how
        Any pattern, its short form, or a sparsifier by a score of the weights: "2:4", "90%", "64:2:8".

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.STE(model, optimizer, "2:4")
    >>> model(torch.randn(4, 16)).square().sum().backward(); optimizer.step(); method.step()
    >>> model.weight.sparsity, model.weight.mask().view(-1, 4).sum(1).unique()
    (0.5, tensor([2]))
    """

    dynamic = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        how: Pattern | Sparsifier | str = "2:4",
        **options: Any,
    ) -> None:
        self.how = as_sparsifier(how)
        if self.how.score.needs:
            raise ValueError(f"{type(self).__name__}: choose by a score of the weights alone, not {self.how.score}")
        super().__init__(model, optimizer, 0.0, **{"init": None, "distribution": "uniform", **options})

    def choose(self, layer: Layer) -> Tensor:
        """What the sparsifier says."""
        return self.how.mask(layer.extra["dense"])


class SRSTE(STE):
    """STE that pulls the weights outside of the mask to zero, so that masks settle (sparse-refined STE).

    Parameters
    ----------
    model, optimizer, how, options
        See :class:`STE`.
    decay_out
        Strength of the pull, 2e-4 as published.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> gs.train.SRSTE(model, torch.optim.SGD(model.parameters(), lr=0.1), "2:4")
    SRSTE(1 layers, step 0, sparsity 50.00%)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        how: Pattern | Sparsifier | str = "2:4",
        *,
        decay_out: float = 2e-4,
        **options: Any,
    ) -> None:
        self.decay_out = decay_out
        super().__init__(model, optimizer, how, **options)

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient, and the pull."""
        return grad + self.decay_out * layer.extra["dense"] * ~layer.mask
