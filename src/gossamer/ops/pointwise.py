"""Pointwise operators: f(values) at the stored positions, f(0) at the others.

Where f(0) is 0 the result is sparse, with the same pattern (or the union, or for products the intersection, of
patterns). Where it isn't, the result is dense: f(0) everywhere, f(values) written over it. A structural zero stays zero
in a product or quotient, whatever stands against it (0 * inf is 0 there), as in every sparse library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.facts import POINTWISE, ZERO_PRESERVING
from gossamer.core.join import build, entries_of, from_entries, gather, values_of
from gossamer.core.lists import keeps_zeros
from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import entries
from gossamer.formats import Format, Structure
from gossamer.formats.keys import unravel
from gossamer.formats.values import mask_padding, placed
from gossamer.ops.join import expand


def _torch_function(name: str) -> Callable[..., Any] | None:
    if name == "polygamma":
        return _polygamma
    special = name.removeprefix("special_")
    homes: tuple[tuple[Any, str], ...] = ((torch, name), (F, name), (torch.special, special), (torch.Tensor, name))
    return next((getattr(home, n) for home, n in homes if hasattr(home, n)), None)


def _polygamma(a: Any, b: Any) -> Tensor:
    return torch.polygamma(b, a) if isinstance(b, int) else torch.polygamma(a, b)  # the method has them the other way


def takes_pointwise(name: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> str | None:
    """Return None if a pointwise function computes these operands, else the reason why not."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    sparse = [a for a in tensors if isinstance(a, SparseTensor)]
    if not sparse or (kwargs and any(isinstance(v, Tensor) for v in kwargs.values())):
        return "a tensor is given by keyword"
    if name == "where" and len(args) != 3:
        return "without values to choose from, it returns places"
    typed = tensors[1:] if name == "where" else tensors
    if any(not s._dense_shape for s in sparse) and any(dtype_of(t) != dtype_of(typed[0]) for t in typed):
        return "a tensor without dimensions has its own rule of types"
    first = sparse[0]._dense_shape
    alike = all(shape_of(t) == first or (not isinstance(t, SparseTensor) and not t.dim()) for t in tensors)
    return None if alike or _broadcast(tensors) is not None else "the shapes don't broadcast"


def _pointwise(name: str, function: Callable[..., Any]) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        return apply(name, function, args, kwargs)

    def guard(*args: Any, **kwargs: Any) -> str | None:
        return takes_pointwise(name, args, kwargs)

    run.__name__ = run.__qualname__ = name  # for gs.explain
    implements(name, (Format, Format, Format), when=guard)(run)


def apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a pointwise function to sparse tensors, numbers and dense tensors."""
    tensors = [a for a in args if isinstance(a, Tensor)]
    sparse = [a for a in tensors if isinstance(a, SparseTensor)]
    if any(not isinstance(a, SparseTensor) and a.dim() > 0 for a in tensors):
        return _with_dense(name, function, args, kwargs)
    first = sparse[0].structure
    if any(s._dense_shape != first.shape for s in sparse):
        shape = _broadcast(sparse)
        assert shape is not None
        if name == "div" and args[0].shape != shape:
            return _with_dense(name, function, args, kwargs)
        args = tuple(_expanded(a, shape) if isinstance(a, SparseTensor) else a for a in args)
        return apply(name, function, args, kwargs)
    if all(s.structure.same(first) for s in sparse):
        return _same_pattern(name, function, args, kwargs, first)
    if name == "mul":
        return _intersection(function, *sparse)
    return _quotient(function, args, kwargs) if name == "div" else _union(name, function, args, kwargs)


def _broadcast(tensors: list[Any]) -> torch.Size | None:
    """Return the shape that all have together; None if there is none (torch says so itself, on the dense path)."""
    try:
        return torch.broadcast_shapes(*(shape_of(t) for t in tensors))
    except RuntimeError:
        return None


def _expanded(tensor: Tensor, shape: torch.Size) -> Tensor:
    if isinstance(tensor, SparseTensor):
        return tensor if tensor._dense_shape == shape else expand(tensor, shape)
    return tensor.expand(shape)


def _same_pattern(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], structure: Structure
) -> Any:
    """All sparse operands have one pattern: f on the values."""
    fill = _fill_of(name, function, args, kwargs)
    if isinstance(fill, Tensor) and structure.valid() is not None:
        # padding must not reach the operand that wants a gradient: f(0) may be infinite
        return _union(name, function, args, kwargs)
    out = function(*(values_of(a) if isinstance(a, SparseTensor) else a for a in args), **kwargs)
    if not isinstance(fill, Tensor) and fill == 0:
        clean = isinstance(args[0], SparseTensor) and keeps_zeros(name, (*args[1:], *kwargs.values()))
        return build(out if len(args) == 1 or clean else mask_padding(out, structure), structure)
    keys, where = structure.entries()
    return _filled(fill, keys, out.reshape(-1) if where is None else out.reshape(-1)[where], structure.shape)


def _filled(fill: Any, keys: Tensor, entries: Tensor, shape: torch.Size) -> Tensor:
    """Return the dense tensor that holds entries at some places, and ``fill`` at all others."""
    if keys.numel() == shape.numel():
        fill = 0  # it will be nowhere, and must not get a gradient of 0 * inf
    if isinstance(fill, Tensor):
        flat = fill.to(entries.dtype).expand(shape.numel())
    else:
        flat = torch.full((shape.numel(),), fill, dtype=entries.dtype, device=entries.device)
    return flat.index_put((keys,), entries).view(shape)


def _fill_of(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return f(0): a number, or a tensor if another operand wants its gradient."""
    if name in ZERO_PRESERVING or (name == "div" and isinstance(args[0], SparseTensor)) or name == "mul":
        return 0
    if name in ("add", "sub", "lerp", "where") and all(isinstance(a, SparseTensor) for a in args[:3]):
        return 0
    if torch.is_grad_enabled() and any(_is_scalar(a) and a.requires_grad for a in args):
        return function(*(a.new_zeros(()) if isinstance(a, SparseTensor) else a for a in args), **kwargs)
    return _evaluate(function, tuple(_stand_in(a) for a in args), tuple(kwargs.items()))


def _is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, SparseTensor) and value.dim() == 0


def _stand_in(value: Any) -> Any:
    """Describe an operand at a place that is not stored, so that f(0) can be a constant of a trace."""
    if isinstance(value, SparseTensor):
        return ("tensor", 0, str(value.dtype))
    return ("tensor", value.item(), str(value.dtype)) if isinstance(value, Tensor) else value


def _evaluate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    def value(a: Any) -> Any:
        described = isinstance(a, tuple) and len(a) == 3 and a[0] == "tensor"
        return torch.tensor(a[1], dtype=getattr(torch, a[2][6:])) if described else a

    with torch.no_grad():
        out = function(*(value(a) for a in args), **dict(kwargs))
    return out.item() if isinstance(out, Tensor) else math.nan


_evaluate._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _with_dense(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A dense operand: products and quotients stay sparse, anything else is dense by nature."""
    shape = _broadcast([a for a in args if isinstance(a, Tensor)])
    assert shape is not None
    quotient = name == "div" and isinstance(args[0], SparseTensor) and args[0]._dense_shape == shape
    if (name == "mul" or quotient) and len(args) == 2:
        sparse = tuple(_expanded(a, shape) if isinstance(a, SparseTensor) else a for a in args)
        return _quotient(function, sparse, kwargs)
    return function(*(a.to_dense() if isinstance(a, SparseTensor) else a for a in args), **kwargs)


def _quotient(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Product or quotient with the pattern of the sparse operand (of the first one, if both are sparse)."""
    structure = next(a.structure for a in args if isinstance(a, SparseTensor))
    left, right = (_read(a, structure) for a in args)
    valid = structure.valid()
    right = right if valid is None else right.masked_fill(~valid, 1)
    return build(mask_padding(function(left, right, **kwargs), structure), structure)


def _read(tensor: Tensor, structure: Structure) -> Tensor:
    """Read an operand at the stored positions; one that is broadcast is never expanded (100,000 rows squared)."""
    shape = structure.shape
    if isinstance(tensor, SparseTensor) or tensor.shape == shape or torch.compiler.is_compiling():
        return gather(_expanded(tensor, shape), structure)
    keys, where = entries(structure)
    tensor = tensor.reshape((1,) * (len(shape) - tensor.dim()) + tuple(tensor.shape))
    places = zip(unravel(keys, shape), tensor.shape, strict=True)
    read = tensor[tuple(torch.zeros_like(coord) if size == 1 else coord for coord, size in places)]
    return placed(read, where, structure)


def _sorted_entries(tensor: SparseTensor) -> tuple[Tensor, Tensor]:
    keys, values = entries_of(tensor)
    order = torch.argsort(keys)
    return keys[order], values[order]


def _intersection(function: Callable[..., Any], a: SparseTensor, b: SparseTensor) -> Tensor:
    (keys, left), (others, right) = _sorted_entries(a), _sorted_entries(b)
    if not others.numel():
        return from_entries(others, function(left[:0], right), a._dense_shape, a.format.general())
    found = torch.searchsorted(others, keys).clamp(max=others.numel() - 1)
    hit = others[found] == keys
    return from_entries(keys[hit], function(left[hit], right[found[hit]]), a._dense_shape, a.format.general())


def _union(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sparse = [a for a in args if isinstance(a, SparseTensor)]
    parts = [entries_of(s) for s in sparse]
    keys, inverse = torch.unique(torch.cat([k for k, _ in parts]), return_inverse=True)
    places = torch.split(inverse, [k.numel() for k, _ in parts])
    spread = iter([v.new_zeros(keys.numel()).index_put((p,), v) for (_, v), p in zip(parts, places, strict=True)])
    out = function(*(next(spread) if isinstance(a, SparseTensor) else a for a in args), **kwargs)
    fill = _fill_of(name, function, args, kwargs)
    if not isinstance(fill, Tensor) and fill == 0:
        return from_entries(keys, out, sparse[0]._dense_shape, sparse[0].format.general())
    return _filled(fill, keys, out, sparse[0]._dense_shape)


# -- functions with a form of their own


def _takes_fused(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> str | None:
    operands = [input, tensor1, tensor2]
    if not all(isinstance(t, Tensor) and dtype_of(t) == dtype_of(input) for t in operands):
        return "the operands have different types"
    if not dtype_of(input).is_floating_point or isinstance(value, Tensor):
        return "the operands are no floats, or value is a tensor"
    return "the shapes don't broadcast" if _broadcast(operands) is None else None


def _fused(name: str, inner: Callable[..., Tensor]) -> None:
    def run(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Any = 1) -> Any:
        return torch.add(input, inner(tensor1, tensor2), alpha=value)

    run.__name__ = run.__qualname__ = name
    implements(name, (Format, Format, Format), when=_takes_fused)(run)


@implements("rdiv", (Format, Format))
def rdiv(input: Tensor, other: Any) -> Any:
    """Return other / input as torch has it: the reciprocal, times the other."""
    return torch.reciprocal(input) * (other.to_dense() if isinstance(other, SparseTensor) else other)


_fused("addcmul", torch.mul)
_fused("addcdiv", torch.div)


@implements(F.dropout, (Format,))
def dropout(input: SparseTensor, p: float = 0.5, training: bool = True, *, train: bool | None = None) -> SparseTensor:
    """Drop stored values, each with probability p; one random number for each value."""
    training = training if train is None else train
    return build(F.dropout(values_of(input), p, training), input.structure)


def _takes_masked_fill(input: Tensor, mask: Tensor, value: Any) -> str | None:
    if not isinstance(input, SparseTensor) or isinstance(mask, SparseTensor) or isinstance(value, SparseTensor):
        return "the mask or the value is sparse, or the input is dense"
    return None


@implements("masked_fill", (Format, Format, Format), when=_takes_masked_fill)
def masked_fill(input: SparseTensor, mask: Tensor, value: Any) -> Any:
    """Fill with 0: the pattern stays. Any other value makes it dense."""
    if _broadcast([input, mask]) != input._dense_shape or isinstance(value, Tensor) or value != 0:
        return torch.masked_fill(input.to_dense(), mask, value)
    structure = input.structure
    return build(values_of(input).masked_fill(gather(mask.expand(structure.shape), structure), 0), structure)


for _name in sorted(POINTWISE):
    _function = _torch_function(_name)
    if _function is not None:
        _pointwise(_name, _function)
