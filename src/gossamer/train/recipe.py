"""Recipes: a method, the learning rate of the sparse layers, its schedule, and distillation, in one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.methods.distill import Distill
from gossamer.patterns import Pattern
from gossamer.train.base import Method
from gossamer.train.gmp import GMP
from gossamer.train.layers import find_layers
from gossamer.train.static import Static

_WARM = 1 / 30  # of the steps: the learning rate rises
_POWER = 0.6  # the learning rate of sparse layers is density ** -0.6 times that of the others: 4 at 90 %
_REACHED = 0.5  # of the steps: gradual pruning of a trained net ends
_TAUGHT = 0.5  # weight of the teacher's predictions in the loss


class Recipe:
    """Train a sparse model that is better than a dense one of as many weights.

    From scratch: fixed random masks by ERK, and a learning rate of the sparse layers that is ``density ** -0.6`` times
    that of all others (4 times at 90 %): a neuron with a tenth of the inputs needs larger steps. From a trained dense
    net, given as ``teacher``: gradual pruning by magnitude in the first half of the steps, and a loss of which one half
    is the distance to the teacher's predictions. The learning rate rises for a thirtieth of the steps, and falls to 0
    along half a cosine.

    The page on sparse training of a language model says what was compared, on which text, and what did not help. The
    power was found at 90 % with one seed: try other learning rates where it matters.

    Parameters
    ----------
    model
        Made sparse in place. With a teacher it starts with the teacher's weights: a deep copy of it.
    how
        Sparsity or pattern: "90%", "2:4", "all:2:8".
    steps
        Of the training.
    lr
        The highest learning rate of the layers that stay dense.
    teacher
        A trained dense net of the same outputs; None: from scratch.
    optimizer
        Makes the optimizer from groups of parameters: a class, or a function.
    options
        Of the method, such as ``skip`` and ``seed``; see :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> recipe = gs.train.Recipe(model, "90%", steps=100, lr=1e-3)
    >>> recipe
    Recipe(Static 90%, 100 steps, learning rate of sparse layers x 3.98)
    >>> for _ in range(100):
    ...     x = torch.randn(16, 64)
    ...     output = model(x)
    ...     recipe.loss((output - x[:, :8]).square().mean(), output, x).backward()
    ...     recipe.step()
    >>> round(model[0].weight.sparsity, 2), recipe.optimizer.param_groups[0]["lr"]
    (0.93, 0.0)
    """

    def __init__(
        self,
        model: nn.Module,
        how: float | str | Pattern = "90%",
        *,
        steps: int,
        lr: float = 1e-3,
        teacher: nn.Module | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        **options: Any,
    ) -> None:
        if isinstance(steps, bool) or steps < 1:
            raise ValueError(f"Recipe: steps={steps!r} must be a number of optimizer steps, from 1")
        self.how, self.steps, self.teacher = how, int(steps), Distill(teacher, hidden=0.0, temperature=1.0)
        self.optimizer = optimizer(_groups(model, options), lr=lr)
        if teacher is None:
            self.method: Method = Static(model, self.optimizer, how, **options)
        else:
            until = max(round(_REACHED * self.steps), 1)
            options = {"every": min(100, max(self.steps // 15, 1)), **options}
            self.method = GMP(model, self.optimizer, how, until=until, **options)
        self.boost = 1.0 if teacher is not None else (1 - self.method.sparsity) ** -_POWER
        self.optimizer.param_groups[1]["lr"] = lr * self.boost
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)

    def _rate(self, step: int) -> float:
        """The learning rate of a step, from 0, relative to the highest."""
        rise = min((step + 1) / max(round(_WARM * self.steps), 1), 1.0)
        return rise * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2

    def loss(self, loss: Tensor, output: Any, *inputs: Any, **more: Any) -> Tensor:
        """Return the loss to train by: the given one, and with a teacher its mean with the distance to the teacher.

        Parameters
        ----------
        loss, output
            Of the model, for a batch.
        inputs, more
            The batch, as the model takes it.
        """
        if self.teacher.teacher is None:
            return loss
        return torch.lerp(loss, self.teacher(output, *inputs, **more).to(loss), _TAUGHT)

    def step(self) -> None:
        """Do what follows ``loss.backward()``: step optimizer, method and learning rate, and reset the gradients."""
        self.optimizer.step()
        self.method.step()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the weights."""
        return {name: getattr(self, name).state_dict() for name in ("optimizer", "method", "scheduler")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the model's first."""
        for name in ("optimizer", "method", "scheduler"):
            getattr(self, name).load_state_dict(state[name])

    def __repr__(self) -> str:
        what = f"{type(self.method).__name__} {self.how}, {self.steps:,} steps"
        if self.teacher.teacher is not None:
            return f"Recipe({what}, distilled)"
        return f"Recipe({what}, learning rate of sparse layers x {self.boost:.3g})"


def _groups(model: nn.Module, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return two groups of parameters: those that stay dense, and those that become sparse."""
    where, skip = options.get("where"), options.get("skip", ())
    first, last = options.get("dense_first", False), options.get("dense_last", False)
    taken = {id(layer.parameter) for layer in find_layers(model, where, skip, first, last)[0]}
    every = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in every if id(p) not in taken]},
        {"params": [p for p in every if id(p) in taken]},
    ]
