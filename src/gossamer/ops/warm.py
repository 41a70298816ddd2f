"""The last call of each expression: a call like it needs no key.

A key of all operands, and looking it up, takes two microseconds. A guard of ``torch.compile`` compares an operand with
that of the call before in a tenth of one. Here are only calls without gradients whose plan is one step with a small
dense result.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._dynamo.guards import TensorGuards
from torch.autograd import forward_ad

from gossamer.compiler.run.again import again, packed
from gossamer.compiler.run.crossover import setting
from gossamer.compiler.run.plans import Plan
from gossamer.core.tensor import SparseTensor
from gossamer.ops.ready import Ready

_grad = torch.is_grad_enabled
_MOST = 256  # expressions
_TURNS = 1024  # calls after which the cache is asked, so that it knows that the plan is used
_LAST: dict[str, Last] = {}


class Last(NamedTuple):
    """A call: its plan, what the next one is compared with, and what computes it."""

    plan: Callable[[], Plan | None]  # weak: the cache drops a plan when a pattern is collected, or for its bytes
    follows: bool  # has an operand a gradient, where gradients are enabled?
    dense: float | None
    left: Iterator[bool]  # True for each call that is left
    run: Callable[..., Tensor | None]
    known: bytes
    looks: tuple[tuple[Any, ...], ...]


def remember(expression: str, tensors: Sequence[Tensor], found: object) -> None:
    """Remember a call that the cache has found, if its plan has run before: a new pattern may never come back."""
    if type(found) is not Ready or type(found.plan) is not Plan or found.plan.shortcut is None:
        return
    plan, run = found.plan, again()
    known = None if run is None else packed(plan)
    if run is None or known is None or not all(map(_plain, tensors)):
        return
    if len(_LAST) >= _MOST:
        _LAST.clear()
    looks, follows = tuple(map(_look, tensors, plan.value_slots)), any(t.requires_grad for t in tensors)
    _LAST[expression] = Last(weakref.ref(plan), follows, setting(), repeat(True, _TURNS), run, known, looks)


def _plain(t: Tensor) -> bool:
    """Are the values of an operand in memory as the kernel reads them?"""
    return not isinstance(t, SparseTensor) or (type(t) is SparseTensor and t._values.is_contiguous())


def _look(t: Tensor, slot: int) -> tuple[Any, ...]:
    """Return the slot of an operand, a guard of it, and if it is sparse its pattern and a guard of its values."""
    if isinstance(t, SparseTensor):
        return slot, _guard(t), weakref.ref(t._structure), _guard(t._values)
    return slot, _guard(t), None, None


def _guard(t: Tensor) -> Callable[[Any], bool]:
    """Return a function that says if another tensor has the same type, device, shape, strides and ``requires_grad``.

    It is False too if torch treats calls in another way than now: a transform, a mode or autocast has a part in them.
    """
    make: Any = TensorGuards  # torch's stub leaves out that it takes tensors
    check: Callable[[Any], bool] = make(t, dynamic_dims_sizes=None, dynamic_dims_strides=None).check
    return check


def last(expression: str, tensors: tuple[Any, ...]) -> Tensor | None:
    """Compute a call like the last one of this expression; None if it is not like it."""
    kept = _LAST.get(expression)
    if kept is None or forward_ad._current_level >= 0:
        return None
    find, follows, dense, left, run, known, looks = kept
    plan = find()  # it has the arrays, so it must live until the end
    if plan is None or dense != setting() or not next(left, False):
        _LAST.pop(expression, None)
        return None
    return None if follows and _grad() else run(known, looks, tensors)
