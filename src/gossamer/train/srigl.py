"""SRigL (Lasby et al. 2024): RigL with a constant fan-in, and with ablation of neurons."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.models.names import by_layer
from gossamer.patterns._rank import keep_top_rows
from gossamer.train.base import Method
from gossamer.train.distributions import in_rows
from gossamer.train.fan_in import constant_fan_in
from gossamer.train.growth import as_growth
from gossamer.train.layers import Layer
from gossamer.train.rules import random, top


class SRigL(Method):
    """Structured RigL: every neuron of a layer that is not ablated keeps the same number of inputs.

    The smallest weights are dropped and those with the largest gradients grow, k for each neuron. A neuron with too few
    salient weights is ablated (removed), and the others get its weights; neurons of the last layer are never ablated. A
    layer with less than one weight per neuron starts with some neurons ablated.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.
    gamma
        Share of the fan-in that must be salient; otherwise the neuron is ablated. The paper uses 0.3 for convolutional
        networks and 0.95 for transformers. 0.95 ablates many neurons: better for small images, and better or worse
        than no ablation for language models, depending on the text.
    min_salient
        Salient weights that a neuron always needs; this matters if the fan-in is small. It is not in the paper; 1 turns
        it off.
    ablation
        False keeps every neuron.
    keep_neurons
        Globs of more layers whose neurons are never ablated (for example several heads).
    growth
        Number of steps before an update over which gradients are averaged, such as 8 or "mean of 8 steps".

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.SRigL(model, optimizer, sparsity=0.8, distribution="uniform", until=1000)
    >>> model[0].weight.mask().sum(1).unique(), model[2].weight.mask().sum(1).unique()
    (tensor([4]), tensor([6]))
    """

    needs_gradient = True
    refuses: ClassVar[Mapping[str, str]] = {
        "pattern": "it keeps a constant fan-in with neurons ablated; RigL takes any pattern",
        "score": "it drops by magnitude and grows by gradient; RigL takes any score",
    }

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | None = None,
        *,
        gamma: float = 0.3,
        min_salient: int = 12,
        ablation: bool = True,
        keep_neurons: tuple[str, ...] | list[str] | str = (),
        growth: int | str = 1,
        **options: Any,
    ) -> None:
        if not 0 <= gamma <= 1:
            raise ValueError(f"SRigL: gamma={gamma!r} must be from 0 to 1, the share of the fan-in that is salient")
        self.gamma, self.min_salient, self.ablation = gamma, min_salient, ablation
        self._keep = [keep_neurons] if isinstance(keep_neurons, str) else list(keep_neurons)
        self.gradient_steps = as_growth(growth).steps
        super().__init__(model, optimizer, sparsity, **options)

    def ablates(self, layer: Layer) -> bool:
        """May neurons of this layer be ablated?"""
        names = [other.name for other in self.layers]
        named = any(layer.name in by_layer(glob, names) for glob in self._keep)
        return self.ablation and not layer.last and not named

    def least(self) -> list[int]:
        """One weight per neuron if all neurons are kept."""
        return [1 if self.ablates(layer) else layer.outputs for layer in self.layers]

    def budgets(self, sparsity: float) -> list[int]:
        """Multiples of the number of kept neurons."""
        return in_rows(super().budgets(sparsity), [layer.shape for layer in self.layers], self.least())

    def first_mask(self, layer: Layer) -> Tensor:
        """Random inputs, the same number for each neuron; if there are too few for all, random neurons."""
        scores = random(layer)
        active = min(layer.outputs, layer.budget)
        active = layer.budget // round(layer.budget / active) if self.ablates(layer) else active
        active = min(active, layer.outputs)
        mask = keep_top_rows(scores, layer.budget // active)
        return mask & top(scores[:, 0], active)[:, None]

    def update(self, layer: Layer) -> Tensor:
        """One update, as published."""
        assert layer.grad is not None
        gamma = self.gamma if self.ablates(layer) else None
        return constant_fan_in(layer.weight, layer.mask, layer.grad, layer.budget, self.share, gamma, self.min_salient)
