"""Pointwise operators: f(values) at the stored positions, f(0) at the others.

Where f(0) is 0 the result is sparse, with the same pattern (or the union, or for products the intersection, of
patterns). Where it isn't, the result is dense: f(0) everywhere, f(values) written over it. A structural zero stays zero
in a product or quotient, whatever stands against it (0 * inf is 0 there), as in every sparse library.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import Format, Structure
from gossamer.ops.registry import implements
from gossamer.tensor import SparseTensor, build, entries_of, from_entries, gather, mask_padding, scatter, values_of

#: f(0) = 0 for every setting of the other arguments.
ZERO_PRESERVING = {
    "abs", "neg", "sgn", "sign", "positive", "sqrt", "square", "sin", "sinh", "tan", "tanh", "asin", "asinh", "atan",
    "atanh", "erf", "erfinv", "expm1", "log1p", "ceil", "floor", "round", "trunc", "frac", "deg2rad", "rad2deg", "relu",
    "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "tanhshrink", "softshrink",
    "hardshrink", "softsign", "nan_to_num", "conj", "conj_physical", "resolve_conj", "resolve_neg", "real", "isnan",
    "isinf", "isneginf", "isposinf", "rrelu", "dropout", "alpha_dropout", "angle", "native_dropout", "signbit",
    "special_bessel_j1", "special_i1", "special_i1e", "special_modified_bessel_i1",
}  # fmt: skip
#: f(0) depends on the function or its arguments, and is worked out.
OTHER_UNARY = {
    "cos", "cosh", "acos", "acosh", "exp", "exp2", "log", "log2", "log10", "reciprocal", "rsqrt", "sigmoid", "logit",
    "erfc", "lgamma", "digamma", "polygamma", "mvlgamma", "i0", "sinc", "logical_not", "isfinite", "isreal",
    "hardtanh", "hardsigmoid", "softplus", "logsigmoid", "threshold", "clamp", "clamp_min", "clamp_max", "pow",
    "float_power", "special_bessel_j0", "special_bessel_y0", "special_bessel_y1", "special_entr", "special_erfcx",
    "special_i0e", "special_log_ndtr", "special_ndtri", "special_modified_bessel_i0", "special_modified_bessel_k0",
    "special_modified_bessel_k1", "special_scaled_modified_bessel_k0", "special_scaled_modified_bessel_k1",
    "special_spherical_bessel_j0", "special_airy_ai", "special_psi",
}  # fmt: skip
BINARY = {
    "add", "sub", "mul", "div", "rsub", "floor_divide", "remainder", "fmod", "maximum", "minimum", "fmax", "fmin",
    "eq", "ne", "lt", "le", "gt", "ge", "atan2", "hypot", "copysign", "xlogy", "special_xlog1py", "logical_and",
    "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "logaddexp", "logaddexp2", "ldexp",
    "heaviside", "isclose", "nextafter", "special_zeta", "addcmul", "addcdiv", "lerp", "arctan2", "igamma", "igammac",
    "special_xlogy", "dist_", "squared_difference_",
}  # fmt: skip
POINTWISE = ZERO_PRESERVING | OTHER_UNARY | BINARY


def _torch_function(name: str) -> Callable[..., Any] | None:
    special = name.removeprefix("special_")
    homes: tuple[tuple[Any, str], ...] = ((torch, name), (F, name), (torch.special, special), (torch.Tensor, name))
    return next((getattr(home, n) for home, n in homes if hasattr(home, n)), None)


def _pointwise(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return apply(name, function, args, kwargs)

    return run


def apply(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Apply a pointwise function to sparse tensors, numbers, and (products only) dense tensors."""
    sparse = [a for a in args if isinstance(a, SparseTensor)]
    dense = [a for a in args if isinstance(a, Tensor) and not isinstance(a, SparseTensor) and a.dim() > 0]
    if not sparse or any(isinstance(v, Tensor) for v in kwargs.values()):
        return NotImplemented
    if dense:
        return _with_dense(name, function, args, kwargs)
    first = sparse[0].structure
    if any(s._dense_shape != first.shape for s in sparse):
        return NotImplemented
    if all(s.structure.same(first) for s in sparse):
        values = [values_of(a) if isinstance(a, SparseTensor) else a for a in args]
        fill = _fill_of(name, function, args, kwargs)
        out = function(*values, **kwargs)
        if not isinstance(out, Tensor):
            return NotImplemented
        return _result(out, first, fill, unary=len(args) == 1)
    if name == "mul":
        return _intersection(function, *sparse)
    return _union(name, function, args, kwargs)


def _result(out: Tensor, structure: Structure, fill: Any, unary: bool) -> Tensor:
    if fill == 0:
        return build(out if unary else mask_padding(out, structure), structure)
    keys, where = structure.entries()
    flat = torch.full((structure.shape.numel(),), fill, dtype=out.dtype, device=out.device)
    entries = out.reshape(-1) if where is None else out.reshape(-1)[where]
    return flat.index_put((keys,), entries).view(structure.shape)


def _fill_of(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return f(0) as a number."""
    if name in ZERO_PRESERVING or (name in ("mul", "div") and isinstance(args[0], SparseTensor)) or name == "mul":
        return 0
    if name in ("add", "sub", "addcmul", "addcdiv", "lerp") and all(isinstance(a, SparseTensor) for a in args[:3]):
        return 0  # addcdiv: 0 + 0 / 0 at positions where neither is stored counts as 0
    zeros = tuple(_zero(a) if isinstance(a, Tensor) else a for a in args)
    return _evaluate(function, zeros, tuple(kwargs.items()))


def _zero(value: Tensor) -> tuple[str, str] | Any:
    if isinstance(value, SparseTensor):
        return ("zero", str(value.dtype))
    return value.item()


def _evaluate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Any:
    def value(a: Any) -> Any:
        is_zero = isinstance(a, tuple) and len(a) == 2 and a[0] == "zero"
        return torch.zeros((), dtype=getattr(torch, a[1][6:])) if is_zero else a

    with torch.no_grad():
        out = function(*(value(a) for a in args), **dict(kwargs))
    return out.item() if isinstance(out, Tensor) else math.nan


_evaluate._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _with_dense(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One sparse and one dense tensor: sparse for products and quotients, dense for sums."""
    if len(args) < 2 or name not in ("mul", "div", "add", "sub"):
        return NotImplemented
    a, b = args[0], args[1]
    tensor, other = (a, b) if isinstance(a, SparseTensor) else (b, a)
    if torch.broadcast_shapes(tensor._dense_shape, other.shape) != tensor._dense_shape:
        return NotImplemented
    structure, other = tensor.structure, other.expand(tensor._dense_shape)
    if name == "mul" or (name == "div" and tensor is a):
        pair = (values_of(tensor), gather(other, structure))
        if name == "div" and structure.valid() is not None:
            pair = (pair[0], pair[1].masked_fill(~structure.valid(), 1))  # type: ignore[operator]
        return build(mask_padding(function(*pair, *args[2:], **kwargs), structure), structure)
    if name == "div":
        return NotImplemented
    plain = scatter(values_of(tensor), structure)
    return function(*((plain, other) if tensor is a else (other, plain)), **kwargs)


def _sorted_entries(tensor: SparseTensor) -> tuple[Tensor, Tensor]:
    keys, values = entries_of(tensor)
    order = torch.argsort(keys)
    return keys[order], values[order]


def _intersection(function: Callable[..., Any], a: SparseTensor, b: SparseTensor) -> Tensor:
    (keys, left), (others, right) = _sorted_entries(a), _sorted_entries(b)
    if not others.numel():
        return from_entries(others, function(left[:0], right), a._dense_shape, a.format)
    found = torch.searchsorted(others, keys).clamp(max=others.numel() - 1)
    hit = others[found] == keys
    return from_entries(keys[hit], function(left[hit], right[found[hit]]), a._dense_shape, a.format)


def _union(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    sparse = [a for a in args if isinstance(a, SparseTensor)]
    parts = [entries_of(s) for s in sparse]
    keys, inverse = torch.unique(torch.cat([k for k, _ in parts]), return_inverse=True)
    places = torch.split(inverse, [k.numel() for k, _ in parts])
    spread = iter([v.new_zeros(keys.numel()).index_put((p,), v) for (_, v), p in zip(parts, places, strict=True)])
    out = function(*(next(spread) if isinstance(a, SparseTensor) else a for a in args), **kwargs)
    fill = _fill_of(name, function, args, kwargs)
    if fill == 0:
        return from_entries(keys, out, sparse[0]._dense_shape, sparse[0].format)
    shape = sparse[0]._dense_shape
    return torch.full((shape.numel(),), fill, dtype=out.dtype).index_put((keys,), out).view(shape)


@implements("masked_fill", (Format, Format, Format))
def masked_fill(input: Tensor, mask: Tensor, value: Any) -> Any:
    """Fill with 0: the pattern stays. Any other value makes it dense, unless the mask lies inside the pattern."""
    if not isinstance(input, SparseTensor) or isinstance(mask, SparseTensor) or value != 0:
        return NotImplemented
    if torch.broadcast_shapes(input._dense_shape, mask.shape) != input._dense_shape:
        return NotImplemented
    structure = input.structure
    return build(values_of(input).masked_fill(gather(mask.expand(structure.shape), structure), 0), structure)


for _name in sorted(POINTWISE):
    _function = _torch_function(_name)
    if _function is not None:
        implements(_name, (Format, Format, Format))(_pointwise(_name, _function))
