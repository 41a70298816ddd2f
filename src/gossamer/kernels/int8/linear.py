"""act(x @ A.T + bias) for an int8 weight and activations that are rounded to eight bits, token by token.

:func:`int8_linear` takes tokens of any number of dimensions, is differentiable in x and in the bias, and can be traced.
The gradient is that of the layer without the rounding of x: rounding has no useful gradient of its own.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.int8.layout import dense_of
from gossamer.kernels.int8.operators import ACTIVATIONS

_linear = torch.ops.gossamer.int8_linear.default
_library = torch.library.Library("gossamer", "FRAGMENT")
_library.define("int8_linear_t(Tensor weight, Tensor grad, int cols) -> Tensor")
_library.define("int8_dense(Tensor weight, int rows, int cols) -> Tensor")
_library.define("int8_linear_recorded(Tensor weight, Tensor x, Tensor? bias, int rows) -> Tensor")
_FLOATS = (torch.float32, torch.bfloat16)
_CODES = {name: code for code, name in enumerate(ACTIVATIONS)}


@torch.library.impl(_library, "int8_linear_t", "CPU")
def _(weight: Tensor, grad: Tensor, cols: int) -> Tensor:
    return grad @ dense_of(weight).to(grad.dtype)


@torch.library.register_fake("gossamer::int8_linear_t", lib=_library)
def _(weight: Tensor, grad: Tensor, cols: int) -> Tensor:
    return grad.new_empty((*grad.shape[:-1], cols))


@torch.library.impl(_library, "int8_dense", "CPU")
def _(weight: Tensor, rows: int, cols: int) -> Tensor:
    return dense_of(weight)


@torch.library.register_fake("gossamer::int8_dense", lib=_library)
def _(weight: Tensor, rows: int, cols: int) -> Tensor:
    return weight.new_empty((rows, cols), dtype=torch.float32)


# The same product with a gradient. It is an operator of its own, because one with a gradient calls Python each time,
# also where no gradient is asked for.


@torch.library.impl(_library, "int8_linear_recorded", "CPU")
def _(weight: Tensor, x: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    return _linear(weight, x, bias, rows, 0)


@torch.library.register_fake("gossamer::int8_linear_recorded", lib=_library)
def _(weight: Tensor, x: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    weight, x, _, _ = inputs
    ctx.save_for_backward(weight)
    ctx.cols = x.shape[-1]


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (weight,) = ctx.saved_tensors
    grad_x = torch.ops.gossamer.int8_linear_t(weight, grad, ctx.cols) if ctx.needs_input_grad[1] else None
    return None, grad_x, grad.reshape(-1, grad.shape[-1]).float().sum(0) if ctx.needs_input_grad[2] else None, None


torch.library.register_autograd("gossamer::int8_linear_recorded", _backward, setup_context=_save, lib=_library)
_recorded = torch.ops.gossamer.int8_linear_recorded.default


def int8_linear(x: Tensor, packed: Tensor, rows: int, bias: Tensor | None = None, activation: str = "none") -> Tensor:
    """Return act(x @ weight.T + bias), of the type of x.

    Each token is rounded to 255 levels between its smallest and its largest value (0 is one of them); sums are exact in
    32 bits. A token that has a NaN or an infinity gives NaN, and no other token is touched. Results don't depend on
    the number of threads.

    Parameters
    ----------
    x
        Tokens [..., cols] on a CPU. float32 and bfloat16 are read as they are, other floats as float32.
    packed
        The weight, from :func:`gossamer.kernels.int8.layout.pack_as`.
    rows
        Of the weight: a trace doesn't see its bytes.
    bias
        [rows] or None.
    activation
        ``"none"``, ``"relu"``, ``"gelu"`` (by erf) or ``"silu"``.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import layout
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = torch.tensor([[1.0, 0.0, -0.5], [0.0, 2.0, 0.0]])
    >>> packed = layout.pack_as(rounded(w), w != 0, layout.Layout("lookup"))
    >>> int8_linear(torch.tensor([2.0, 1.0, 0.0]), packed, 2).round(decimals=2)
    tensor([2., 2.])
    """
    code = _CODES.get(activation)
    if code is None:
        raise ValueError(f"activation={activation!r} must be one of {', '.join(ACTIVATIONS)}")
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}: an int8 layer rounds floats itself, so give it x.float()")
    shift = bias if bias is None or bias.dtype is torch.float32 else bias.float()
    tokens = x if x.dtype in _FLOATS else x.float()
    if torch.is_grad_enabled() and (tokens.requires_grad or (shift is not None and shift.requires_grad)):
        out = _activated(_recorded(packed, tokens, shift, rows), activation)
    else:
        out = _linear(packed, tokens, shift, rows, code)
    return out if tokens is x else out.to(x.dtype)


def _activated(x: Tensor, activation: str) -> Tensor:
    return x if activation == "none" else getattr(torch.nn.functional, activation)(x)
