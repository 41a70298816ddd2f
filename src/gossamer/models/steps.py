"""Hooks before and after the steps of all optimizers.

Before a step, optimizer state is converted for weights that have changed, and sparse gradients are passed as dense
ones, as optimizers expect. After a step, weights with a rule select new positions, and values that an unusual optimizer
has written outside a mask are cleared.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gossamer.core.join import gather
from gossamer.core.tensor import SparseTensor
from gossamer.core.untraced import untraced
from gossamer.core.values import scatter
from gossamer.formats import Masked, Structure
from gossamer.formats.values import cleared
from gossamer.models.home import Home, home_of, version_of
from gossamer.models.masked import clear_gradients, clear_writes, settle
from gossamer.models.state import KEEP_ZEROS, follow_all, move_state, settled
from gossamer.models.stored import store


def _homes(optimizer: Optimizer) -> Iterator[tuple[Any, Home]]:
    """Parameters of sparse modules, and where they belong."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            home = home_of(parameter)
            if home is not None and home.module() is not None:
                yield parameter, home


@untraced
@torch.no_grad()
def before_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Prepare weights, gradients and state for a step."""
    follow_all(optimizer)
    homes = list(_homes(optimizer))
    masked = [(parameter, home) for parameter, home in homes if home.mask is not None]
    if any(home.together is None for _, home in masked):
        known = [weakref.ref(parameter) for parameter, _ in masked]
        for _, home in masked:
            home.together = known
    clear_gradients(masked)
    keeps_zeros = type(optimizer) in KEEP_ZEROS
    for parameter, home in homes:
        held = home.held
        home.steps = False
        clear_writes(parameter, home)
        home.steps = keeps_zeros and held.rule is None
        if held.gradient is not None and parameter.grad is not None:
            _give_gradient(parameter, home)
        if held.rule is not None and held.rule.due and held.is_stored and held.collected is not None:
            _open(optimizer, parameter, home)


def _give_gradient(parameter: Any, home: Home) -> None:
    """Let the gradient be a dense one, made sparse now if it had to wait for the other ranks."""
    held, grad = home.held, parameter.grad
    if held.ranks is not None:
        whole = grad if parameter.shape == held.shape else _mean(held.collected, held.ranks)
        assert held.gradient is not None
        grad = held.gradient.apply(whole.to_dense() if isinstance(whole, SparseTensor) else whole)
    if held.is_stored:
        structure = home.module().structure_of(home.name)  # type: ignore[union-attr, operator]
        grad = gather(grad, structure) if grad.shape == held.shape else grad
    elif isinstance(grad, SparseTensor):
        grad = grad.to_dense()
    parameter.grad = grad if home.mask is None else cleared(grad, home.mask)


def _open(optimizer: Optimizer, parameter: Any, home: Home) -> None:
    """Let the parameter of a stored weight be dense for this step, with its whole gradient."""
    held = home.held
    closed = home.module().structure_of(home.name)  # type: ignore[union-attr, operator]
    grad = held.collected if held.ranks is None else _mean(held.collected, held.ranks)
    move_state(optimizer, parameter, closed, None)
    dense = scatter(parameter.detach(), closed)
    parameter.grad = None
    parameter.data = dense  # autograd expects the old shape, which is restored after the step
    parameter.grad, held.collected = grad, None
    home.closed = closed


@untraced
@torch.no_grad()
def after_step(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Choose weights again where it is due, and clear what an unusual optimizer wrote outside masks."""
    clears = type(optimizer) not in KEEP_ZEROS
    for parameter, home in _homes(optimizer):
        rule, home.steps = home.held.rule, False
        if rule is not None and parameter.grad is not None:
            if rule.due:
                _choose(optimizer, parameter, home)
            rule.steps += 1
        elif home.mask is not None:
            if clears:
                cleared(parameter.data, home.mask, inplace=True)
            home.written = version_of(parameter)


def _choose(optimizer: Optimizer, parameter: Any, home: Home) -> None:
    """Make a weight sparse again after a step at all positions; on an error it has the pattern that it had."""
    module, name, held = home.module(), home.name, home.held
    closed = home.closed if held.is_stored else _masked(parameter, home.mask)
    chosen = SparseTensor(gather(parameter.data, closed), closed)
    try:
        chosen = held.rule.how.apply(parameter.data)  # type: ignore[union-attr, assignment]
    finally:  # also if the weights contain NaN, or on Ctrl-C
        if held.is_stored:
            parameter.grad = None
            parameter.data = parameter.data.new_empty(closed.value_shape)
            store(module, name, chosen._values, chosen.structure)  # type: ignore[arg-type]
        else:
            home.mask.copy_(chosen.mask())  # type: ignore[union-attr]
            settle(module, name, parameter, home.mask)  # type: ignore[arg-type]
        move_state(optimizer, parameter, None, chosen.structure)
        settled(optimizer, parameter)
        home.closed = None


def _masked(parameter: Tensor, mask: Any) -> Structure:
    return Structure(Masked(), parameter.shape, {f"mask{parameter.dim() - 1}": mask.clone().view(-1)}, mask.device)


def _mean(grad: Any, ranks: Any) -> Tensor:
    """Average what each rank has collected by itself."""
    dist.all_reduce(grad, group=ranks)
    return grad.div_(dist.get_world_size(ranks))


register_optimizer_step_pre_hook(before_step)
register_optimizer_step_post_hook(after_step)
