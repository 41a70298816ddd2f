"""The int8 products as torch operators: schemas and fake functions; the kernels are native.

- ``int8_linear``: act(x @ A.T + bias) of an int8 weight A, x quantised on the way unless it is uint8 already,
- ``int8_quantize``: activations in eight bits, for several products of the same x.

Both are for inference: they have no gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer import native
from gossamer.kernels.int8.weight import MOST_COLS, Int8Weight

_library = torch.library.Library("gossamer", "FRAGMENT")
_library.define(
    "int8_linear(Tensor values, Tensor? pos, Tensor? crd, Tensor? line, Tensor scale, Tensor sum, Tensor x,"
    " Tensor? x_scale, Tensor? x_zero, Tensor? bias, Tensor? out_scale, Tensor? out_zero, int kind, int rows, int cols,"
    " int lines, int stride, int tall, int window, int activation, int out) -> Tensor"
)
_library.define("int8_quantize(Tensor x, Tensor? scale, Tensor? zero) -> (Tensor, Tensor, Tensor)")
for _name in ("int8_linear", "int8_quantize"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")

ACTIVATIONS = ("none", "relu", "gelu", "silu")
#: What comes out: the position is the operator's argument.
OUTPUTS = (torch.float32, torch.bfloat16, torch.uint8)


@torch.library.register_fake("gossamer::int8_linear", lib=_library)
def _(*args: Any) -> Tensor:
    x, rows, out = args[6], args[13], args[20]
    return x.new_empty((x.shape[0], rows), dtype=OUTPUTS[out])


@torch.library.register_fake("gossamer::int8_quantize", lib=_library)
def _(x: Tensor, scale: Any, zero: Any) -> tuple[Tensor, Tensor, Tensor]:
    tokens = x.shape[0]
    return (
        x.new_empty(x.shape, dtype=torch.uint8),
        x.new_empty(tokens, dtype=torch.float32),
        x.new_empty(tokens, dtype=torch.int32),
    )


_linear, _quantize = torch.ops.gossamer.int8_linear.default, torch.ops.gossamer.int8_quantize.default


def takes(weight: Int8Weight, x: Tensor) -> str | None:
    """Return why the kernels can't take this, or None."""
    if not (x.is_cpu and weight.values.is_cpu):
        return "int8 products run on a CPU"
    if x.dtype not in OUTPUTS:
        return f"x is {x.dtype}: float32, bfloat16 or uint8 are taken"
    if weight.cols > MOST_COLS:
        return f"{weight.cols} columns: sums are exact up to {MOST_COLS}"
    return None if native.load() else f"no native kernels: {native.why_not()}"


def linear(
    x: Tensor,
    weight: Int8Weight,
    bias: Tensor | None = None,
    *,
    activation: int = 0,
    x_range: tuple[Tensor, Tensor] | None = None,
    out: torch.dtype | None = None,
    out_range: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return act(x @ weight.T + bias) for a matrix of tokens.

    Parameters
    ----------
    x
        float32 or bfloat16 [tokens, cols] with contiguous rows; or uint8, as :func:`quantize` and ``out=torch.uint8``
        give it.
    bias
        float32 [rows].
    activation
        Position in :data:`ACTIVATIONS`.
    x_range
        Scale (float32) and zero (int32) of x, one for all tokens, or of uint8 one for each. Without, each token has
        its own, by its smallest and largest value.
    out
        float32, bfloat16, or uint8 in ``out_range``; by default the type of x, float32 for uint8.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import pack
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = torch.tensor([[1.0, 0.0, -0.5]])
    >>> linear(torch.tensor([[1.0, 2.0, 2.0]]), pack.dense(rounded(w))).shape
    torch.Size([1, 1])
    """
    dtype = out or (torch.float32 if x.dtype is torch.uint8 else x.dtype)
    ranges = (*(x_range or (None, None)), bias, *(out_range or (None, None)))
    return _linear(*weight.arrays, x, *ranges, *weight.sizes, activation, OUTPUTS.index(dtype))


def quantize(x: Tensor, x_range: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return x [tokens, cols] as uint8 in 0 .. 254, with the scale and the zero of each token.

    ``x = scale * (q - zero)``, up to half a scale. A token with a value that is not finite has the scale NaN.

    Examples
    --------
    >>> import torch
    >>> q, scale, zero = quantize(torch.tensor([[-1.0, 0.0, 3.0]]))
    >>> q.tolist(), zero.tolist(), round(float(scale) * 254, 5)
    ([[0, 64, 254]], [64], 4.0)
    """
    return _quantize(x, *(x_range or (None, None)))
