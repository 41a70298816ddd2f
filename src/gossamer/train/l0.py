"""l0 by hard concrete gates (Louizos et al. 2018): every weight has a learned gate that can be exactly 0."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.scores import HardConcrete as Gates
from gossamer.train import checks
from gossamer.train.layers import Layer
from gossamer.train.straight import Straight


class HardConcrete(Straight):
    """Train a gate for each weight. Every open gate has a price (l0), which determines the sparsity.

    Gates are sampled at every step until ``until``; then they are fixed at their means.

    Parameters
    ----------
    model, optimizer, options
        See :class:`gossamer.train.Method`.
    price
        Added to the loss for each weight whose gate is expected to be open.
    lr
        Learning rate of the gates, which use plain gradient descent.
    opening
        Initial ``log_alpha`` of the gates; 2 opens nearly all.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> method = gs.train.HardConcrete(model, optimizer, price=1.0, lr=1.0, until=100)
    >>> for _ in range(101):
    ...     model(torch.randn(4, 16)).square().mean().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    >>> model.weight.sparsity > 0.9
    True
    """

    needs_until: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = {
        "sparsity": "its gates decide; price=... is what an open gate costs",
        "pattern": "its gates decide, one by one",
        "score": "its gates decide",
    }

    @property
    def fixed(self) -> bool:
        """Gates, and with them values, are fixed by their means."""
        return False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        price: float = 1e-5,
        *,
        lr: float = 0.1,
        opening: float = 2.0,
        **options: Any,
    ) -> None:
        checks.options(type(self).__name__, self.refuses, **options)  # before a pattern is compared with no sparsity
        self.price, self.lr, self.opening, self.gates = price, lr, opening, Gates()
        super().__init__(model, optimizer, 0.0, **{"init": None, "distribution": "uniform", **options})

    def choose(self, layer: Layer) -> Tensor:
        """Draw the gates; those above 0 are open."""
        alpha = layer.extra.setdefault("log_alpha", torch.full_like(layer.extra["dense"], self.opening))
        with torch.enable_grad():
            alpha = alpha.detach().requires_grad_()
            fixed = self.until is not None and self.steps + 1 > self.until
            gate = self.gates.gate(alpha) if fixed else self.gates.sample(alpha, generator=self._noise(alpha))
            (slope,) = torch.autograd.grad(gate.sum(), alpha)
            (cost,) = torch.autograd.grad(self.gates.penalty(alpha), alpha)
        layer.extra.update(gate=gate.detach(), slope=slope, cost=cost)
        return layer.extra["gate"] > 0

    def _noise(self, alpha: Tensor) -> torch.Generator:
        """The method's random numbers; on a GPU, numbers of the GPU that follow from them."""
        if alpha.device.type == "cpu":
            return self.rng
        seed = int(torch.randint(2**62, (), generator=self.rng))
        return torch.Generator(alpha.device).manual_seed(seed)

    def values(self, layer: Layer) -> Tensor:
        """Weights times gates."""
        return layer.extra["dense"] * layer.extra["gate"]

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """Move the gates; the weight's own gradient goes through its gate."""
        own = layer.extra
        if self.until is None or self.steps < self.until:
            own["log_alpha"] = own["log_alpha"] - self.lr * (
                grad * own["dense"] * own["slope"] + self.price * own["cost"]
            )
        return grad * own["gate"]
