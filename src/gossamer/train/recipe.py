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

_WARM = 1 / 30  # of the steps: the learning rate rises
_POWER, _MOST = 1.2, 16.0  # the learning rate of sparse layers is density ** -1.2 times that of the others, at most 16
_PRUNED = (0.15, 0.75)  # of the steps: gradual pruning from scratch begins and ends
_REACHED = 0.5  # of the steps: gradual pruning of a trained net ends
_TAUGHT = 0.5  # weight of the teacher's predictions in the loss


class Recipe:
    """Train a sparse model with the settings that worked best on a language model.

    From scratch: dense at first, then gradual pruning by magnitude from 15 to 75 % of the steps. The learning rate of
    the layers that are pruned is ``density ** -1.2`` times that of all others (in the end 16 times at 90 %, and never
    more), because a neuron with a tenth of the inputs needs larger steps. N:M patterns are reached group by group. With
    a trained dense network as ``teacher``: gradual pruning in the first half of the steps, and a loss whose other half
    is the distance to the teacher's predictions. The learning rate rises during the first thirtieth of the steps, and
    then falls to 0 along a cosine.

    The page on sparse training of a language model has the comparisons, and what did not help. The exponent was chosen
    in a training of 1,500 steps, and was better than 0.6 in one of 4,500 too.

    Parameters
    ----------
    model
        The model, which is made sparse in place. With a teacher, pass a deep copy of the teacher.
    how
        Sparsity or pattern: "90%", "2:4", "all:2:8".
    steps
        Number of training steps.
    lr
        The highest learning rate of the dense layers.
    teacher
        A trained dense network with the same outputs, or a :class:`gossamer.prune.Distill` with one; None: from
        scratch.
    optimizer
        A class or function that creates the optimizer from groups of parameters.
    options
        Options of the method, such as ``skip`` and ``seed``; see :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    >>> recipe = gs.train.Recipe(model, "90%", steps=100, lr=1e-3)
    >>> recipe
    Recipe(GMP 90%, 100 steps, learning rate of sparse layers x 15.8)
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
        teacher: nn.Module | Distill | None = None,
        optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
        **options: Any,
    ) -> None:
        if isinstance(steps, bool) or steps < 1:
            raise ValueError(f"Recipe: steps={steps!r} must be a number of optimizer steps, from 1")
        self.how, self.steps = how, int(steps)
        self.teacher = teacher if isinstance(teacher, Distill) else Distill(teacher, hidden=0.0, temperature=1.0)
        self.optimizer = optimizer(_groups(model, options), lr=lr)
        self.method = self._method(model, options)
        self.boost = self._boost()
        rates = [self._rate, lambda step: self.boost * self._rate(step)]
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rates)

    def _method(self, model: nn.Module, options: dict[str, Any]) -> Method:
        """Make the method: gradual pruning."""
        start, until = (0.0, _REACHED) if self.teacher.teacher is not None else _PRUNED
        options = {
            "every": min(100, max(self.steps // 15, 1)), "start": round(start * self.steps),
            "until": max(round(until * self.steps), 1), **options,
        }  # fmt: skip
        return GMP(model, self.optimizer, self.how, **options)

    def _boost(self) -> float:
        """The learning rate of the sparse layers relative to that of the others, by their density now."""
        return 1.0 if self.teacher.teacher is not None else _boost_of(self.method.log()["density"])

    def _rate(self, step: int) -> float:
        """The learning rate of a step, from 0, relative to the highest."""
        rise = min((step + 1) / max(round(_WARM * self.steps), 1), 1.0)
        return rise * (1 + math.cos(math.pi * min(step / self.steps, 1.0))) / 2

    def loss(self, loss: Tensor | None, output: Any, *inputs: Any, **more: Any) -> Tensor:
        """Return the loss to minimise: the given one, or with a teacher, its mean with the distance to the teacher.

        If the loss is None, only the distance to the teacher.

        Parameters
        ----------
        loss, output
            Of the model, for a batch.
        inputs, more
            The batch, as arguments of the model.
        """
        if self.teacher.teacher is None:
            if loss is None:
                raise ValueError("Recipe.loss: without a teacher, give a loss")
            return loss
        distance = self.teacher(output, *inputs, **more)
        return distance if loss is None else torch.lerp(loss, distance.to(loss), _TAUGHT)

    def step(self) -> None:
        """Call this after ``loss.backward()``: it steps the optimizer, the method and the learning rate, and resets the
        gradients."""
        self.optimizer.step()
        self.method.step()
        if self.method.due(self.method.steps):
            self.boost = self._boost()
        self.scheduler.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        """Return everything except the weights."""
        return {name: getattr(self, name).state_dict() for name in ("optimizer", "method", "scheduler")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the model's first."""
        for name in ("optimizer", "method", "scheduler"):
            getattr(self, name).load_state_dict(state[name])
        self.boost = self._boost()

    def __repr__(self) -> str:
        what = f"{type(self.method).__name__} {self.how}, {self.steps:,} steps"
        if self.teacher.teacher is not None:
            return f"Recipe({what}, distilled)"
        return f"Recipe({what}, learning rate of sparse layers x {_boost_of(1 - self.method.sparsity):.3g})"


def _boost_of(density: float) -> float:
    """Return the learning rate of layers of a density, relative to dense ones.

    Examples
    --------
    >>> round(_boost_of(0.5), 2), round(_boost_of(0.1), 2), _boost_of(0.01)
    (2.3, 15.85, 16.0)
    """
    return min(density**-_POWER, _MOST)


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
