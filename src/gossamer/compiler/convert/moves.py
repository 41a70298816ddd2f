"""Values from one order to another, in one pass, and back for gradients."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.convert import conversion
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.run import runtime

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
    whole = place is None and n == places
    out = fresh(places, values.dtype, zero=not whole)
    size = values.element_size()
    ctype, per = ("long", size // 8) if size >= 8 else ({1: "char", 2: "short", 4: "int"}[size], 1)
    types = [_C[torch.int32 if t is None else t.dtype] for t in (where, place)]
    held = [0 if t is None else t.data_ptr() for t in (where, place)]
    _mover(ctype, per, *types)(n, values.data_ptr(), held[0], out.data_ptr(), held[1])
    return out


@functools.lru_cache(maxsize=32)
def _mover(ctype: str, per: int, index: str, other: str) -> Any:
    found = runtime.library(conversion.MOVE.format(ctype=ctype, per=per, index=index, other=other)).move
    found.argtypes, found.restype = [ctypes.c_long] + [ctypes.c_void_p] * 4, None
    return found
