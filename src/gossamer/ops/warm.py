"""The last call of each expression: a call like it needs no key.

A key of all operands, and looking it up, takes two microseconds; comparing operands with those of the call before takes
half of that. Here are only calls without gradients whose plan is one step with a small dense result.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gossamer.compiler.run.crossover import setting
from gossamer.compiler.run.plans import Plan
from gossamer.core.tensor import SparseTensor
from gossamer.ops.ready import Ready

_transforms = torch._C._functorch.peek_interpreter_stack
_plainly = torch._C.DisableTorchFunctionSubclass
_grad, _STRIDED = torch.is_grad_enabled, torch.strided
_MOST = 256  # expressions
_TURNS = 64  # calls after which the cache is asked, so that it knows that the plan is used
_LAST: dict[str, list[Any]] = {}


def remember(expression: str, tensors: Sequence[Tensor], found: object) -> None:
    """Remember a call that the cache has found."""
    if type(found) is not Ready or type(found.plan) is not Plan or found.plan.shortcut is None:
        return
    if len(_LAST) >= _MOST:
        _LAST.clear()
    looks = tuple(
        (SparseTensor, id(t._structure), t._values.dtype)
        if type(t) is SparseTensor
        else (type(t), t.shape, (t.stride(), t.dtype))
        for t in tensors
    )
    # weak: the cache drops a plan when one of its patterns is collected, or for its bytes
    _LAST[expression] = [weakref.ref(found.plan), looks, setting(), _TURNS]


def last(expression: str, tensors: Sequence[Any]) -> Tensor | None:
    """Compute a call like the last one of this expression; None if it is not like it."""
    kept = _LAST.get(expression)
    if kept is None or _transforms() is not None or forward_ad._current_level >= 0:
        return None
    plan, looks, dense, left = kept
    plan = plan()
    if plan is None or left == 0 or dense != setting() or len(looks) != len(tensors):
        del _LAST[expression]
        return None
    values = []
    for t, (kind, first, second) in zip(tensors, looks):  # noqa: B905 - the lengths are equal
        if type(t) is not kind:
            return None
        if kind is SparseTensor:
            own = t._values
            if (
                id(t._structure) != first
                or own.dtype is not second
                or type(own) is not Tensor
                or not own.is_contiguous()
            ):
                return None
            values.append(own)
        elif t.layout is not _STRIDED or t.shape != first or (t.stride(), t.dtype) != second:
            return None
        else:
            values.append(t)
    if _grad():
        with _plainly():
            for t in tensors:
                if t.requires_grad:
                    return None
    kept[3] = left - 1
    out: Tensor = plan.shortcut(values)
    return out
