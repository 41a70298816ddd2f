"""The int8 products as torch operators: schemas and fake functions; the kernels are native.

- ``int8_linear``: act(x @ A.T + bias) of an int8 weight A; x is quantised on the way, each token by its own range,
- ``int8_linear_ranged``: the same where x or the output has a range that is given, or is in eight bits already,
- ``int8_quantize``: activations in eight bits, for several products of the same x,
- ``int8_conv2d``: act(convolution of images x with A + bias + add), each image quantised by its own range; or, where
  the range of A is fixed, images in eight bits already; the output is in eight bits if its range is given. ``add`` is
  float32, of the output's shape, and both are channels_last.

They are for inference and have no gradient. A weight is one tensor (:mod:`gossamer.kernels.int8.weight`), so that a
call has few arguments: each takes a sixth of a microsecond.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer import native
from gossamer.kernels.images import output_places

_library = torch.library.Library("gossamer", "FRAGMENT")
_library.define("int8_linear(Tensor weight, Tensor x, Tensor? bias, int rows, int activation) -> Tensor")
_library.define(
    "int8_linear_ranged(Tensor weight, Tensor x, Tensor? bias, Tensor? x_scale, Tensor? x_zero, Tensor? out_scale,"
    " Tensor? out_zero, int rows, int activation, int out) -> Tensor"
)
_library.define("int8_quantize(Tensor x, Tensor? scale, Tensor? zero) -> (Tensor, Tensor, Tensor)")
_library.define(
    "int8_conv2d(Tensor weight, Tensor x, Tensor? bias, Tensor? add, Tensor? out_scale, Tensor? out_zero, int rows, "
    "int kernel_h, int kernel_w, int stride_h, int stride_w, int dilation_h, int dilation_w, int left, int right, "
    "int top, int bottom, int activation) -> Tensor"
)
for _name in ("int8_linear", "int8_linear_ranged", "int8_quantize", "int8_conv2d"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")

ACTIVATIONS = ("none", "relu", "gelu", "silu")
#: What comes out: the position is the operator's argument.
OUTPUTS = (torch.float32, torch.bfloat16, torch.uint8)


@torch.library.register_fake("gossamer::int8_linear", lib=_library)
def _(weight: Any, x: Tensor, bias: Any, rows: int, activation: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows))


@torch.library.register_fake("gossamer::int8_linear_ranged", lib=_library)
def _(weight: Any, x: Tensor, bias: Any, a: Any, b: Any, c: Any, d: Any, rows: int, act: int, out: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], rows), dtype=OUTPUTS[out])


@torch.library.register_fake("gossamer::int8_quantize", lib=_library)
def _(x: Tensor, scale: Any, zero: Any) -> tuple[Tensor, Tensor, Tensor]:
    q, tokens = x.new_empty(x.shape, dtype=torch.uint8), x.shape[0]
    return q, x.new_empty(tokens, dtype=torch.float32), x.new_empty(tokens, dtype=torch.int32)


@torch.library.register_fake("gossamer::int8_conv2d", lib=_library)
def _(weight: Any, x: Tensor, bias: Any, add: Any, out_scale: Any, out_zero: Any, rows: int, *sizes: int) -> Tensor:
    bytes_out, floats = out_scale is not None, torch.float32 if x.dtype is torch.uint8 else x.dtype
    planes = x.is_contiguous() and add is None and not bytes_out and x.dtype is not torch.uint8
    order = torch.contiguous_format if planes else torch.channels_last
    dtype = torch.uint8 if bytes_out else floats
    shape = (x.shape[0], rows, *output_places(x.shape[2:], sizes))
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=order)


_linear, _ranged = torch.ops.gossamer.int8_linear.default, torch.ops.gossamer.int8_linear_ranged.default
_quantize = torch.ops.gossamer.int8_quantize.default


class Range(NamedTuple):
    """The scale (float32) and the zero (int32) of numbers in eight bits: one of each, or one for each token."""

    scale: Tensor
    zero: Tensor


def takes(x: Tensor) -> str | None:
    """Return why the kernels can't take these activations, or None.

    Examples
    --------
    >>> import torch
    >>> takes(torch.zeros(1, 4, dtype=torch.float64))
    'x is torch.float64: float32, bfloat16 or uint8 are taken'
    """
    if not x.is_cpu:
        return f"x is on {x.device}: int8 products run on a CPU"
    if x.dtype not in OUTPUTS:
        return f"x is {x.dtype}: float32, bfloat16 or uint8 are taken"
    return None if native.load() else f"no native kernels: {native.why_not()}"


def linear(
    weight: Tensor,
    x: Tensor,
    bias: Tensor | None,
    rows: int,
    activation: int = 0,
    *,
    x_range: Range | None = None,
    out_range: Range | None = None,
    out: torch.dtype | None = None,
) -> Tensor:
    """Return act(x @ weight.T + bias) for tokens of any dimensions and strides.

    Parameters
    ----------
    weight
        From ``pack.dense``, ``pack.lines`` or ``lookup.lookup``.
    x
        float32 or bfloat16 [..., cols]; or uint8, from :func:`quantize` or ``out_range``.
    bias
        float32 [rows].
    rows
        Of the weight: a trace doesn't see its bytes.
    activation
        Position in :data:`ACTIVATIONS`.
    x_range
        Of x, one for all tokens, or for uint8 one for each. Without, each token has its own, by its smallest and
        largest value.
    out_range
        The output is uint8 in this range; values outside saturate.
    out
        Otherwise float32 or bfloat16; by default the type of x, float32 for uint8.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import pack
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = pack.dense(rounded(torch.tensor([[1.0, 0.0, -0.5]])))
    >>> linear(w, torch.tensor([[2.0, 1.0, 0.0]]), None, 1).round(decimals=2)
    tensor([[2.]])
    """
    native.load()
    if x_range is None and out_range is None and (out is None or out is x.dtype):
        return _linear(weight, x, bias, rows, activation)
    dtype = torch.uint8 if out_range else out or (torch.float32 if x.dtype is torch.uint8 else x.dtype)
    ranges = (*(x_range or (None, None)), *(out_range or (None, None)))
    return _ranged(weight, x, bias, *ranges, rows, activation, OUTPUTS.index(dtype))


def quantize(x: Tensor, x_range: Range | None = None) -> tuple[Tensor, Range]:
    """Return x [tokens, cols] as uint8 in 0 .. 254, and the range of each token.

    ``x = scale * (q - zero)``, up to half a scale. A token with a value that is not finite has the scale NaN.

    Examples
    --------
    >>> import torch
    >>> q, range = quantize(torch.tensor([[-1.0, 0.0, 3.0]]))
    >>> q.tolist(), range.zero.tolist(), round(float(range.scale) * 254, 5)
    ([[0, 64, 254]], [64], 4.0)
    """
    native.load()
    q, scale, zero = _quantize(x, *(x_range or (None, None)))
    return q, Range(scale, zero)
