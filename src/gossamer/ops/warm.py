"""The last calls: one like them needs no key.

A key of all operands, and looking it up, takes two microseconds. A guard of ``torch.compile`` compares an operand with
that of the call before in a tenth of one. If the result is dense and small, and has no gradient, C code computes it too
(:mod:`gossamer.compiler.run.again`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gossamer.compiler.run.again import again, packed
from gossamer.compiler.run.crossover import setting
from gossamer.compiler.run.plans import Plan
from gossamer.core.join import WantsDenseGradient
from gossamer.core.tensor import SparseTensor
from gossamer.ops.ready import ORDINARY, Kept, Ready

try:
    from torch._C._dynamo.guards import TensorGuards
except ImportError:  # it is no public name: without it, every call asks the cache
    TensorGuards = None  # type: ignore[assignment, misc]

_grad = torch.is_grad_enabled
_MOST = 256  # calls
_TURNS = 256  # turns of a call, after which the cache is asked: it knows then that the plan is used
_LAST: dict[tuple[Any, ...], Last] = {}


class Last(NamedTuple):
    """A call: its function, what the next one is compared with, and what computes it."""

    found: Callable[[], Kept | None]  # weak: the cache drops it when a pattern is collected, or for its bytes
    dense: float | None
    left: Iterator[bool]  # True for each turn that is left
    run: Callable[..., Any]
    known: bytes | None
    looks: tuple[tuple[Any, ...], ...]


def _place(expression: str, tensors: Sequence[Any]) -> tuple[Any, ...]:
    """Return where a call is remembered: each pattern of the first operand has its own place."""
    first = tensors[0] if tensors else None
    return expression, _grad(), id(first._structure) if type(first) is SparseTensor else 0


def remember(expression: str, tensors: Sequence[Tensor], found: Kept) -> None:
    """Remember a call that the cache has found twice: a new pattern may never come back.

    If there is another one in its place, that one is kept until its turns are over.
    """
    if not found.seen:
        found.seen = True
        return
    place, run = _place(expression, tensors), again()
    if (
        run is None
        or TensorGuards is None
        or place in _LAST
        or not all(type(t) is SparseTensor or type(t) in ORDINARY for t in tensors)
    ):
        return
    if len(_LAST) >= _MOST:
        _LAST.clear()
    known, slots = None, [0] * len(tensors)
    if isinstance(found, Ready) and isinstance(found.plan, Plan) and all(map(_contiguous, tensors)):
        known, slots = packed(found.plan), found.plan.value_slots
    looks = tuple(map(_look, tensors, slots))
    _LAST[place] = Last(weakref.ref(found), setting(), repeat(True, _TURNS), run, known, looks)


def _contiguous(t: Tensor) -> bool:
    """Are the values of a sparse operand in memory as the kernel reads them? It knows the strides of dense ones."""
    return not isinstance(t, SparseTensor) or t._values.is_contiguous()


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


def last(expression: str, tensors: tuple[Any, ...]) -> Any:
    """Compute a call like one before; None if there is none like it."""
    place = _place(expression, tensors)
    kept = _LAST.get(place)
    if kept is None or forward_ad._current_level >= 0:
        return None
    find, dense, left, run, known, looks = kept
    found = find()  # it has the index arrays, so it must live until the end
    if found is None or dense != setting() or not next(left, False):
        _LAST.pop(place, None)
        return None
    done = run(known, looks, tensors)
    if known is not None or done is None:
        return done
    try:
        return found(tensors)
    except WantsDenseGradient:  # that was not asked for before
        return None
