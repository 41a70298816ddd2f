"""Optimizer state follows a weight: if the mask or the format changes, the state is converted.

Code that changes a weight usually has no reference to the optimizer. So the change is recorded here, and applied before
the next step of every optimizer (``steps.py``). Positions that are dropped lose their state; new ones start as those of
a new parameter do.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from gossamer.core.join import gather
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import scatter
from gossamer.formats import Masked, Structure
from gossamer.formats.values import cleared
from gossamer.models.home import home_of
from gossamer.models.own_state import factored, restart, unfactored

#: Optimizers that leave a weight at zero if its gradient and state are zero: all of torch's except Muon.
KEEP_ZEROS = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop", "Rprop", "ASGD",
                 "LBFGS", "Adafactor")
    if hasattr(torch.optim, name)
)  # fmt: skip


#: State of a new parameter that isn't zero, and the setting that it starts with. From zero, Rprop's steps would take
#: fifty updates to have the length that they should.
_FIRST = {
    (torch.optim.Rprop, "step_size"): "lr",
    (torch.optim.Adagrad, "sum"): "initial_accumulator_value",
}


class _Moves:
    """What a parameter's values were when an optimizer last saw it, and what they are now (None: dense)."""

    def __init__(self, before: Structure | None) -> None:
        self.now = before
        self.first = before
        self.seen: WeakKeyDictionary[Optimizer, Structure | None] = WeakKeyDictionary()


_moves: Any = WeakIdKeyDictionary()
_count = 0  # number of all changes: an optimizer that has seen all of them has nothing to do
_followed: WeakKeyDictionary[Optimizer, tuple[int, ...]] = WeakKeyDictionary()


def moved(parameter: Tensor, before: Structure | None, now: Structure | None) -> None:
    """Note that a parameter has another mask or format; optimizers learn of it at their next step."""
    global _count
    _count += 1
    moves = _moves.get(parameter)
    if moves is None:
        moves = _moves[parameter] = _Moves(before)
    moves.now = now


def settled(optimizer: Optimizer, parameter: Tensor) -> None:
    """Note that the state of an optimizer has been moved along by other means."""
    moves = _moves.get(parameter)
    if moves is not None:
        moves.seen[optimizer] = moves.now


def follow_all(optimizer: Optimizer) -> None:
    """Move the state of all parameters of an optimizer that have changed since it last saw them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    now = (_count, *map(id, parameters))
    if _followed.get(optimizer) == now:
        return
    for parameter in parameters:
        follow(optimizer, parameter)
    _followed[optimizer] = now


def follow(optimizer: Optimizer, parameter: Tensor) -> None:
    """Move the state of a parameter, if it has changed since an optimizer last saw it."""
    moves = _moves.get(parameter)
    if moves is None:
        return
    if optimizer not in moves.seen:
        optimizer.register_load_state_dict_post_hook(_loaded)
        moves.seen[optimizer] = moves.first
    if moves.seen[optimizer] is moves.now:
        return
    move_state(optimizer, parameter, moves.seen[optimizer], moves.now)
    moves.seen[optimizer] = moves.now


def _loaded(optimizer: Optimizer) -> None:
    """State from a file belongs to the weights as they are now: load the model first. It may be that of a dense one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            home = home_of(parameter)
            if home is not None and home.mask is not None and not home.held.open:
                _clear(optimizer, parameter, home.mask)
            settled(optimizer, parameter)


def _clear(optimizer: Optimizer, parameter: Tensor, mask: Tensor) -> None:
    """Set state outside a mask to that of a new weight."""
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if type(value) is Tensor and value.shape == parameter.shape:
            state[name] = _outside(value, mask, _first(optimizer, parameter, name))


def _outside(value: Tensor, mask: Tensor, first: float) -> Tensor:
    """Return state that is that of a new weight outside a mask."""
    return value.masked_fill(~mask, first) if first else cleared(value.contiguous(), mask)


def move_state(optimizer: Optimizer, parameter: Tensor, before: Structure | None, now: Structure | None) -> None:
    """Bring the state of one parameter from one structure to another; None stands for dense."""
    if isinstance(optimizer, torch.optim.LBFGS):
        restart(optimizer)
        return
    state = optimizer.state.get(parameter)
    if not state:
        return
    adafactor = isinstance(optimizer, torch.optim.Adafactor)
    if adafactor:
        unfactored(state)
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() > 0 and type(value) in (Tensor, SparseTensor):
            state[name] = _moved_value(value, before, now, _first(optimizer, parameter, name))
    if adafactor:
        factored(state)


def _first(optimizer: Optimizer, parameter: Tensor, name: str) -> float:
    """What state of this name is for a new parameter."""
    for (kind, known), setting in _FIRST.items():
        if isinstance(optimizer, kind) and name == known:
            groups = (group for group in optimizer.param_groups if any(p is parameter for p in group["params"]))
            return float(next(groups, optimizer.defaults)[setting])
    return 0.0


def _moved_value(value: Tensor, before: Structure | None, now: Structure | None, first: float) -> Tensor:
    shape = (now or before).shape  # type: ignore[union-attr]
    if isinstance(value, SparseTensor):
        dense = value.to_dense()
    elif before is None and now is not None and value.shape == now.value_shape != shape:
        return value  # it came from a file with the weight
    elif before is not None and not isinstance(before.format, Masked) and value.shape == before.value_shape:
        dense = scatter(value, before)
        if first:
            dense.masked_fill_(~SparseTensor(value, before).mask(), first)
    elif value.shape == shape:
        dense = value
    else:
        return value  # it has another shape, such as Adafactor's rows, so it is not an array of positions
    if now is None:
        return dense
    if isinstance(now.format, Masked):
        (mask,) = now.arrays.values()
        return _outside(dense, mask.view(shape), first)
    return gather(dense, now)
