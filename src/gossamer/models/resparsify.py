"""Weights that are chosen anew while they train.

A weight with a rule is, every k steps, opened to all its positions for one optimizer step, updated there with a dense
gradient, and made sparse again by its sparsifier: w <- S(w + update), at dense cost in that step only. In between its
pattern is fixed, and so are gradient and optimizer state. What is dropped takes its optimizer state with it.

It happens in hooks that torch gives every optimizer, so any optimizer and any loop will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gossamer.core.tensor import SparseTensor, gather
from gossamer.formats import Dense, Masked
from gossamer.ops.sparsified import Output
from gossamer.ops.sparsify import apply_mask


@dataclass
class Rule:
    """How a weight is chosen anew: how, every how many steps, and how many were made."""

    how: Output
    every: int
    steps: int = 0
    closed: Any = None  # the structure before the step that is being made

    @property
    def due(self) -> bool:
        """Is the coming step one that chooses anew?"""
        return (self.steps + 1) % self.every == 0


def check_rule(how: Output, every: int | None) -> None:
    """Refuse what could only fail later, in the middle of training."""
    if every is not None and (not isinstance(every, int) or every < 1):
        raise ValueError(f"every={every!r} must be a number of optimizer steps, from 1")
    for score in (how.inline.score, how.external.score):
        if score.needs:
            raise ValueError(
                f"{type(score).__name__} needs {', '.join(score.needs)}, which an optimizer step doesn't give it: "
                "choose anew by a score of the weights alone, such as gs.Magnitude()"
            )


def set_rule(parameter: SparseTensor, how: Output, every: int) -> None:
    """Let a weight be chosen anew, every so many optimizer steps."""
    _install()
    parameter.rule = Rule(how, every)
    parameter.grad_format = Dense() if parameter.rule.due else None


_installed = False


def _install() -> None:
    global _installed
    if not _installed:
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
        _installed = True


def _ruled(optimizer: Any) -> list[tuple[SparseTensor, Rule]]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [
        (p, p.rule) for p in parameters if isinstance(p, SparseTensor) and p.rule is not None and p.grad is not None
    ]


@torch.no_grad()
def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for parameter, rule in _ruled(optimizer):
        if rule.due:
            dense = parameter.detach().to_dense()
            opened = apply_mask(dense, torch.ones_like(dense, dtype=torch.bool), Masked())
            rule.closed = parameter.structure
            _move(parameter, opened, optimizer)


@torch.no_grad()
def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for parameter, rule in _ruled(optimizer):
        if rule.due:
            dense = parameter.detach().to_dense()
            try:
                chosen = rule.how.apply(dense)
            except BaseException:  # a NaN in the weights, Ctrl-C: the weight keeps the pattern that it had
                _move(parameter, SparseTensor(gather(dense, rule.closed), rule.closed), optimizer)
                raise
            _move(parameter, chosen, optimizer)
        rule.steps += 1
        parameter.grad_format = Dense() if rule.due else None


def _move(parameter: SparseTensor, new: Tensor, optimizer: Any) -> None:
    """Give a weight another pattern, and its optimizer state with it: what is dropped loses its state."""
    assert isinstance(new, SparseTensor)
    for name, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, SparseTensor) and value._dense_shape == new._dense_shape:
            optimizer.state[parameter][name] = SparseTensor(gather(value, new.structure), new.structure)
    parameter._values = new._values
    parameter._set_structure(new.structure)
