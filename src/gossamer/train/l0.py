"""l0 by hard concrete gates (Louizos et al. 2018): every weight has a learned gate that can be exactly 0."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.schedules import Schedule, as_schedule, at_step
from gossamer.scores import HardConcrete as Gates
from gossamer.train import checks
from gossamer.train.layers import Layer
from gossamer.train.masters import Master
from gossamer.train.pricing import Push, cut, push, remember
from gossamer.train.rules import refuse_nan
from gossamer.train.straight import Straight
from gossamer.train.target import as_target

#: Default learning rate of gates, times the square root of the steps: chosen on the King James Bible and MNIST.
_LR = 2.0


class HardConcrete(Straight):
    """Train a gate for each weight; closed gates remove weights (l0).

    With a sparsity, all gates are lowered together at every step, so that the expected number of open ones follows a
    schedule from ``start`` to ``until``. At ``until`` the most open ones are kept, exactly as many as the sparsity
    says, over all layers together. With ``price=`` each open gate costs this price instead, and the sparsity is what
    results from it.

    Gates are sampled at every step until ``until``; then they are fixed at their means.

    Parameters
    ----------
    model, optimizer, options
        See :class:`gossamer.train.Method`.
    sparsity
        Of all sparse layers together: 0.9 by default. Layers share the weights as the gates decide.
    price
        Instead of a sparsity: added to the loss for each weight whose gate is expected to be open.
    lr
        Learning rate of the gates, which use plain gradient descent. With a sparsity, gradients are divided by their
        root mean square over all gates, so that the scale of the loss and the size of the model don't matter, and the
        default is ``2 / sqrt(until - start)``; with a price it is 0.1.
    opening
        Initial ``log_alpha`` of the gates; 2 opens nearly all.
    schedule
        How the sparsity rises: "cubic" (the default), "linear", "cosine" or a function.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    >>> method = gs.train.HardConcrete(model, optimizer, 0.75, until=100)
    >>> for _ in range(101):
    ...     model(torch.randn(4, 16)).square().mean().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    >>> model.weight.sparsity
    0.75
    """

    needs_until: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = {
        "pattern": "its gates decide, one by one",
        "score": "its gates decide",
        "distribution": "its gates decide, in all layers together; skip=... keeps layers dense",
    }

    @property
    def fixed(self) -> bool:
        """Gates, and with them values, are fixed by their means."""
        return False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        price: float | None = None,
        lr: float | None = None,
        opening: float = 2.0,
        schedule: str | Schedule | None = None,
        **options: Any,
    ) -> None:
        name = type(self).__name__
        checks.options(name, self.refuses, **options)
        if price is not None and sparsity is not None:
            raise ValueError(f"{name}: give sparsity={sparsity!r} or price={price!r}: one follows from the other")
        if price is None and as_target(name, sparsity, None).pattern is not None:
            raise ValueError(f"{name} doesn't support {sparsity}: its gates decide, one by one")
        self._check_numbers(price=price, lr=lr)
        self.price, self.lr, self.opening, self.gates = price, 0.1 if lr is None else lr, opening, Gates()
        self._usual_lr = lr is None and price is None
        self.schedule = as_schedule(schedule or "cubic")
        self._push: Push | None = None
        options = {"init": None, "distribution": "uniform", **options}
        super().__init__(model, optimizer, 0.0 if price is not None else sparsity, **options)

    def _share_out(self, sparsity: float | None) -> float:
        length = (self.until or 0) - self.start
        if self.price is None and length < 1:
            raise ValueError(f"HardConcrete: until={self.until} must be after start={self.start}")
        if self._usual_lr:
            self.lr = _LR / math.sqrt(length)
        return super()._share_out(sparsity)

    def _check_numbers(self, **numbers: float | None) -> None:
        for name, number in numbers.items():
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise ValueError(f"HardConcrete: {name}={number!r} must be a number from 0")

    def first_mask(self, layer: Layer) -> Tensor:
        """Sampled gates, nearly all open."""
        layer.extra["dense"] = layer.weight.clone()
        refuse_nan([layer.extra["dense"]])
        own = layer.extra
        own["log_alpha"] = torch.full_like(own["dense"], self.opening, dtype=_precise(own["dense"].dtype))
        return self._draw(layer, means=False)

    def choose(self, layer: Layer) -> Tensor:
        """Draw the gates; those above 0 are open."""
        until = self.until or 0
        return self._draw(layer, means=self.steps + 1 > until or (self.price is None and self.steps + 1 == until))

    def _draw(self, layer: Layer, means: bool) -> Tensor:
        with torch.enable_grad():
            alpha = layer.extra["log_alpha"].detach().requires_grad_()
            gate = self.gates.gate(alpha) if means else self.gates.sample(alpha, generator=self._noise(alpha))
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
        return (layer.extra["dense"] * layer.extra["gate"]).to(layer.extra["dense"].dtype)

    def pull_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """Look how far all gates together are from their number."""
        self._push = None
        if self.price is None and self.start <= self.steps < (self.until or 0):
            self._push = push(self.layers, self.gates, self._wanted())
        return masters

    def _wanted(self) -> float:
        """How many gates are expected to be open after this step."""
        size = sum(layer.size for layer in self.layers)
        first = size * float(self.gates.penalty(torch.tensor([self.opening])))
        share = at_step(self.schedule, self.steps + 1 - self.start, (self.until or 0) - self.start, 0.0, 1.0)
        return first + min(max(share, 0.0), 1.0) * (sum(layer.budget for layer in self.layers) - first)

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """Move the gates; the weight's own gradient goes through its gate."""
        own = layer.extra
        if self.steps < (self.until or 0):
            gradient = grad * own["dense"] * own["slope"]
            if self.price is not None:
                own["log_alpha"] = own["log_alpha"] - self.lr * (gradient + self.price * own["cost"])
            elif self._push is not None:
                remember(own, gradient)
                own["log_alpha"] = self._push(own["log_alpha"], gradient, self.lr)
        return (grad * own["gate"]).to(grad.dtype)

    def choose_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """At ``until``, keep as many gates as wanted, of all layers together."""
        if self.price is not None or self.steps + 1 != self.until:
            return masters
        cut(self.layers, sum(layer.budget for layer in self.layers), self.gates)
        return [master for master in self._masters if master.is_masked]  # those without a gradient too


def _precise(dtype: torch.dtype) -> torch.dtype:
    """Of gates: their steps are too small for half precision."""
    return torch.promote_types(dtype, torch.float32)
