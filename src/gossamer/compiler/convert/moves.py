"""Values from one order to another, in one pass, and back for gradients."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.loops.nest import ZERO, For, Load, Nest, Store, Var
from gossamer.compiler.loops.uses import routine

_C = {torch.int32: "int", torch.int64: "long"}


def moved(values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int) -> Tensor:
    """Values of a tensor at their new places: ``out[place[k]] = values[where[k]]``, zeros elsewhere.

    For n entries and ``places`` places; without ``where``, entry k was at k; without ``place``, it will be.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.run.runtime import available
    >>> where = torch.tensor([2, 0], dtype=torch.int32)
    >>> moved(torch.tensor([1., 2., 3.]), where, None, 2, 2).tolist() if available() else [3.0, 1.0]
    [3.0, 1.0]
    """
    if torch.is_grad_enabled() and values.requires_grad:
        return _Move.apply(values, where, place, n, places)
    return _move(values, where, place, n, places)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int) -> Tensor:
        ctx.back = (place, where, n, values.numel())
        ctx.shape = values.shape
        return _move(values.detach(), where, place, n, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return moved(grad, *ctx.back).view(ctx.shape), None, None, None, None


def _move(values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int) -> Tensor:
    values = values.contiguous()
    out = fresh(places, values.dtype, zero=not (place is None and n == places))
    types = [None if t is None else _C[t.dtype] for t in (where, place)]
    arrays = {"from": values, "to": out, "where": where, "place": place}
    _mover(value_type(values.element_size()), *types).run("move", arrays, {"n": n})
    return out


def value_type(size: int) -> str:
    """Return a type in C whose values have this size in bytes: they are only copied.

    Examples
    --------
    >>> value_type(4), value_type(16)
    ('int', 'value16')
    """
    return {1: "char", 2: "short", 4: "int", 8: "long", 16: "value16"}[size]


@functools.lru_cache(maxsize=32)
def _mover(value: str, where: str | None, place: str | None) -> Passes:
    return Passes({"move": mover(value, where, place)})


def mover(value: str, where: str | None, place: str | None) -> Nest:
    """Return the nest that moves values of a type, with indices of these types, if they are given.

    Examples
    --------
    >>> print(mover("float", "int", None))
    # move
    for k in 0 .. n:
      to[k] = from[where[k]]
    """
    k = Var("k")
    store = Store("to", Load("place", k) if place else k, Load("from", Load("where", k) if where else k))
    types = {"from": value, "to": value, "where": where or "", "place": place or ""}
    return routine("move", [For("k", ZERO, Var("n"), [store])], types)
