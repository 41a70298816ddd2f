"""Calls like one before: kept with everything that was decided, so that they cost little more than their kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.run.cache import PLANS
from gossamer.compiler.run.crossover import setting
from gossamer.compiler.run.plans import Plan
from gossamer.core.tensor import SparseTensor, tracked
from gossamer.formats import Format, Structure

ORDINARY = (Tensor, torch.nn.Parameter)


class Ready:
    """A plan that takes the tensors of a call as they are: the short way for a call like one before."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def nbytes(self) -> int:
        """Bytes that the plan keeps."""
        return self.plan.nbytes()

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        values, structure = self.plan([t._values if isinstance(t, SparseTensor) else t for t in tensors])
        return values if structure is None else SparseTensor(values, structure)


class ReadyPath:
    """Several steps: each a function of operands and results of steps before, by their numbers."""

    def __init__(self, steps: Sequence[tuple[Callable[[Sequence[Tensor]], Any], tuple[int, ...]]]) -> None:
        self.steps = tuple(steps)

    def nbytes(self) -> int:
        """Bytes that the plans keep."""
        return sum(step.nbytes() for step, _ in self.steps if isinstance(step, Ready))

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        results = list(tensors)
        for step, numbers in self.steps:
            results.append(step([results[n] for n in numbers]))
        return results[-1]


def key_of(expression: str, tensors: Sequence[Any], out: Format | None) -> tuple[Any, ...]:
    """The key under which the plan of a call is kept; empty if autograd or a trace has a part in it."""
    key: list[Any] = [expression, out, setting()]
    grad = torch.is_grad_enabled()
    for t in tensors:
        if isinstance(t, SparseTensor):
            if grad and tracked(t):
                return ()
            structure, values = t._structure, t._values
            if type(values) not in ORDINARY:
                return ()
            key += (id(structure), values.dtype)
        elif type(t) in ORDINARY and t.layout is torch.strided and not (grad and t.requires_grad):
            key += (t.shape, t.stride(), t.dtype)
        else:
            return ()
    return tuple(key)


def known(expression: str, tensors: Sequence[Tensor], out: Format | None) -> Ready | ReadyPath | None:
    """Return what was kept for a call like this one."""
    key = key_of(expression, tensors, out)
    found: Ready | ReadyPath | None = PLANS.get(key) if key else None
    return found


def keep(expression: str, tensors: Sequence[Tensor], out: Format | None, call: Ready | ReadyPath) -> None:
    """Keep a call as long as the patterns of its operands live."""
    key = key_of(expression, tensors, out)
    if key:
        owners: tuple[Structure, ...] = tuple(t._structure for t in tensors if isinstance(t, SparseTensor))
        PLANS.keep(key, call, owners)
