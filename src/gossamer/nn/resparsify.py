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

from gossamer.formats import Dense, Format, Masked
from gossamer.ops.sparsify import apply_mask, sparsify
from gossamer.sparsifiers import Sparsifier
from gossamer.tensor import SparseTensor, gather


@dataclass
class Rule:
    """How a weight is chosen anew: by which sparsifier, every how many steps, and how many were made."""

    sparsifier: Sparsifier
    every: int
    format: Format
    steps: int = 0

    @property
    def due(self) -> bool:
        """Is the coming step one that chooses anew?"""
        return (self.steps + 1) % self.every == 0


def set_rule(parameter: SparseTensor, sparsifier: Sparsifier, every: int) -> None:
    """Let a weight be chosen anew by a sparsifier, every so many optimizer steps."""
    _install()
    rule = Rule(sparsifier, every, parameter.format)
    parameter.rule = rule  # type: ignore[attr-defined]
    parameter.grad_format = Dense() if rule.due else None


def rule_of(parameter: Any) -> Rule | None:
    """Return the rule of a weight, if it has one."""
    return parameter.__dict__.get("rule") if isinstance(parameter, SparseTensor) else None


_installed = False


def _install() -> None:
    global _installed
    if not _installed:
        register_optimizer_step_pre_hook(_before_step)
        register_optimizer_step_post_hook(_after_step)
        _installed = True


def _ruled(optimizer: Any) -> list[tuple[SparseTensor, Rule]]:
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return [(p, rule) for p in parameters if (rule := rule_of(p)) is not None and p.grad is not None]


@torch.no_grad()
def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for parameter, rule in _ruled(optimizer):
        if rule.due:
            dense = parameter.detach().to_dense()
            opened = apply_mask(dense, torch.ones_like(dense, dtype=torch.bool), Masked())
            _move(parameter, opened, optimizer)


@torch.no_grad()
def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    for parameter, rule in _ruled(optimizer):
        if rule.due:
            chosen = sparsify(parameter.detach().to_dense(), rule.sparsifier, rule.format)
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
