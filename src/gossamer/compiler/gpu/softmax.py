"""Softmax over the entries of each row, and its gradient: a nest of three loops over a row, one launch each.

It is no statement of index notation, because a row is read three times: for its largest value, for the sum of the
exponentials, and to write them. So its nest is written here, over the same sorted entries as all others.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gossamer.compiler.gpu.kernel import Kernel
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.pieces import C_TYPES, Cut, Sorted, cut, in_order
from gossamer.compiler.gpu.types import VALUES
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Acc,
    Bin,
    Call,
    Expr,
    For,
    Into,
    Let,
    Load,
    Nest,
    Stmt,
    Store,
    Var,
    add,
)
from gossamer.formats import Structure

_ROW, _ENTRY, _AT = "A0.q", "A1.q", "A1.at"
_TOP = "out.top"


def softmax(values: Tensor, structure: Structure, dim: int) -> Tensor:
    """Return the softmax of a sparse tensor's values along a dimension, over the stored entries; differentiable."""
    out: Tensor = _Softmax.apply(values, structure, dim)
    return out


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, structure: Structure, dim: int) -> Tensor:
        ctx.structure, ctx.dim = structure, dim
        out = _run("softmax", structure, dim, values)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        return _Slope.apply(out, grad, ctx.structure, ctx.dim), None, None


class _Slope(torch.autograd.Function):
    """Gradient of the softmax: p (g - sum of p g along the row)."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, grad: Tensor, structure: Structure, dim: int) -> Tensor:
        ctx.structure, ctx.dim = structure, dim
        ctx.save_for_backward(out, grad)
        return _run("slope", structure, dim, out, grad)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, second: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (out, grad), rows = ctx.saved_tensors, (ctx.structure, ctx.dim)
        of_out = second * (grad - _run("sums", *rows, out, grad)) - grad * _run("sums", *rows, out, second)
        return of_out, _run("slope", *rows, out, second), None, None


def _run(what: str, structure: Structure, dim: int, *values: Tensor) -> Tensor:
    ndim = len(structure.shape)
    rows = in_order(structure, tuple(d for d in range(ndim) if d != dim % ndim))
    pieces: Cut = structure.cached(("gpu rows", dim % ndim), lambda: cut(rows.groups, 1 << 62))
    first = values[0]
    out = torch.zeros_like(first) if rows.where is not None else torch.empty_like(first)
    if not structure.nnz or not pieces.number:
        return out.zero_()
    lanes = 32 if structure.nnz >= 12 * pieces.number else 8
    made = _kernel(what, VALUES[first.dtype][0], _types(rows, pieces), lanes, first.numel() > 2**31 - 2**21)
    arrays = [pieces.starts, *([] if rows.where is None else [rows.where])]
    tensors = [*arrays, *(v.contiguous() for v in values), out]
    pointers = [t.data_ptr() for t in tensors]
    grid = (math.ceil(pieces.number / made.mapping.units), 1, 1)
    made.launch(first.get_device(), grid, [*pointers, pieces.number, pieces.number])
    return out


def _types(rows: Sorted, pieces: Cut) -> tuple[str, ...]:
    return tuple(C_TYPES[a.dtype] for a in (pieces.starts, rows.where) if a is not None)


@lru_cache(maxsize=64)
def _kernel(what: str, value: str, types: tuple[str, ...], lanes: int, long: bool) -> Kernel:
    return Kernel(nest(what, value, types), Mapping("sum", _ENTRY, lanes, 1, 4), long)


def nest(what: str, value: str, types: tuple[str, ...]) -> Nest:
    """Return the nest of the "softmax", of its "slope", or of "sums": those of a product along a row, at each entry.

    ``types`` are those of the arrays ``pos`` and, if there is one, ``where``.

    Examples
    --------
    >>> print(nest("slope", "float", ("int",)))
    # slope of a row
    parallel for A0.q in 0 .. A.count0:
      out.acc = 0
      for A1.q in A.pos1[A0.q] .. A.pos1[A0.q + 1]:
        out.acc += A.val[A1.q] * B.val[A1.q]
      for A1.q in A.pos1[A0.q] .. A.pos1[A0.q + 1]:
        out[A1.q] = A.val[A1.q] * (B.val[A1.q] - out.acc)
    """
    at: Expr = Var(_ENTRY) if len(types) == 1 else Var(_AT)
    own, other, acc = Load("A.val", at), Load("B.val", at), Var(names.ACC)
    if what == "softmax":
        weight = Call("exp", (Bin("-", own, Var(_TOP)),))
        body: list[Stmt] = [
            Acc(_TOP, -math.inf),
            _row(types, Into(_TOP, own, "max=")),
            Acc(names.ACC),
            _row(types, Into(names.ACC, weight)),
            _row(types, Store(names.OUT, at, Bin("/", weight, acc))),
        ]
    else:
        result: Expr = acc if what == "sums" else Bin("*", own, Bin("-", other, acc))
        body = [
            Acc(names.ACC),
            _row(types, Into(names.ACC, Bin("*", own, other))),
            _row(types, Store(names.OUT, at, result)),
        ]
    index = [("A.pos1", types[0]), *([("A.where1", types[1])] if len(types) > 1 else [])]
    given = [("A.val", value), *([] if what == "softmax" else [("B.val", value)])]
    arrays = (*index, *given, (names.OUT, value))
    rows = For(_ROW, ZERO, Var("A.count0"), body, "units")
    return Nest(f"{what} of a row", arrays, ("A.count0",), [rows], value, Var("A.count0"))


def _row(types: tuple[str, ...], inner: Stmt) -> For:
    """The loop over a row."""
    lets: list[Stmt] = [Let(_AT, Load("A.where1", Var(_ENTRY)))] if len(types) > 1 else []
    begin, end = Load("A.pos1", Var(_ROW)), Load("A.pos1", add(Var(_ROW), ONE))
    return For(_ENTRY, begin, end, [*lets, inner])
