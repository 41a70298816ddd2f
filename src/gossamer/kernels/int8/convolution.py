"""act(convolution + bias) for an int8 weight, with images that are rounded to eight bits, each with its own range.

A weight [outputs, channels, height, width] is a matrix whose columns are (row of the kernel, position in it, channel).
In the channels_last format the activations of a row of the kernel are then consecutive bytes, so that patches are
copied run by run and all layouts of linear layers work.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.kernels.int8.layout import dense_of
from gossamer.kernels.int8.operators import ACTIVATIONS

_conv2d = torch.ops.gossamer.int8_conv2d.default
_FLOATS = (torch.float32, torch.bfloat16)


def matrix_of(weight: Tensor, groups: int = 1) -> Tensor:
    """Return the weight of a two-dimensional convolution, or its mask, as the matrix of a product with patches.

    That of a convolution in groups has zeros where an output doesn't read a channel.

    Examples
    --------
    >>> import torch
    >>> matrix_of(torch.arange(8.0).view(1, 2, 2, 2)).tolist()
    [[0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]]
    >>> matrix_of(torch.tensor([[[[3.0]]], [[[4.0]]]]), groups=2).tolist()
    [[3.0, 0.0], [0.0, 4.0]]
    """
    outputs, channels, *kernel = weight.shape
    if groups > 1:
        whole = weight.new_zeros(groups, outputs // groups, groups, channels, *kernel)
        each = torch.arange(groups)
        whole[each, :, each] = weight.reshape(groups, outputs // groups, channels, *kernel)
        weight = whole.reshape(outputs, groups * channels, *kernel)
    return weight.permute(0, 2, 3, 1).reshape(outputs, -1)


def weight_of(matrix: Tensor, kernel: tuple[int, int], groups: int = 1) -> Tensor:
    """Return the weight, or mask, whose matrix this is: the inverse of :func:`matrix_of`.

    Examples
    --------
    >>> import torch
    >>> w = torch.randn(6, 2, 3, 3)
    >>> torch.equal(weight_of(matrix_of(w, groups=3), (3, 3), groups=3), w)
    True
    """
    outputs = matrix.shape[0]
    weight = matrix.reshape(outputs, *kernel, -1).permute(0, 3, 1, 2)
    if groups > 1:
        each = torch.arange(groups)
        parts = weight.reshape(groups, outputs // groups, groups, -1, *kernel)[each, :, each]
        weight = parts.reshape(outputs, -1, *kernel)
    return weight.contiguous()


def int8_conv2d(
    x: Tensor, packed: Tensor, rows: int, window: tuple[int, ...], bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Return act(convolution of x with the weight + bias), of the type and the memory format of x.

    Each image is rounded to 255 levels between its smallest and its largest value (0 is one of them), or in the range
    of the weight; sums are exact in 32 bits. An image with a NaN or an infinity gives NaN everywhere. Results don't
    depend on the number of threads. Gradients of x and the bias are those of the convolution without rounding x.

    Parameters
    ----------
    x
        Images [images, channels, height, width] on a CPU. float32 and bfloat16 are read as they are, other floats as
        float32. Both orders that torch has for images, contiguous and channels_last, are read and written as they
        are; others are copied.
    packed
        The matrix of :func:`matrix_of`, from :func:`gossamer.kernels.int8.layout.pack_as`.
    rows
        Of the weight: a trace doesn't see its bytes.
    window
        Kernel, stride and dilation, down and across each; padding: left, right, top, bottom.
    bias
        [rows] or None.
    activation
        ``"none"``, ``"relu"``, ``"gelu"`` (by erf) or ``"silu"``.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.int8 import layout
    >>> from gossamer.kernels.int8.weight import rounded
    >>> w = torch.tensor([[[[1.0, 0.0], [0.0, -0.5]]]])
    >>> packed = layout.pack_as(rounded(matrix_of(w)), matrix_of(w != 0), layout.Layout("lookup"))
    >>> x = torch.tensor([[[[2.0, 1.0, 0.0], [0.0, 2.0, 4.0]]]])
    >>> int8_conv2d(x, packed, 1, (2, 2, 1, 1, 1, 1, 0, 0, 0, 0)).round(decimals=1)
    tensor([[[[ 1., -1.]]]])
    """
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}: an int8 layer rounds floats itself, so give it x.float()")
    shift = bias if bias is None or bias.dtype is torch.float32 else bias.float()
    images = x if x.dtype in _FLOATS else x.float()
    records = torch.is_grad_enabled() and (images.requires_grad or (shift is not None and shift.requires_grad))
    code = ACTIVATIONS.index("none" if records else activation)
    plain = images.detach() if records else images
    read = plain if plain.is_contiguous(memory_format=torch.channels_last) else plain.contiguous()
    plain_bias = shift.detach() if records and shift is not None else shift
    out = _conv2d(packed, read, plain_bias, None, None, None, rows, *window, code)
    if records:
        out = _with_gradient(out, images, packed, window, shift)
        out = out if activation == "none" else getattr(F, activation)(out)
    return out if images is x else out.to(x.dtype)


def _with_gradient(out: Tensor, x: Tensor, packed: Tensor, window: tuple[int, ...], bias: Tensor | None) -> Tensor:
    """Return ``out`` with the gradient of the convolution by the same weight in floating point."""
    kernel, stride, dilation, padding = window[:2], window[2:4], window[4:6], window[6:]
    weight = weight_of(dense_of(packed), (kernel[0], kernel[1])).to(x.dtype)
    shift = None if bias is None else bias.to(x.dtype)
    exact = F.conv2d(F.pad(x, padding), weight, shift, stride, 0, dilation)
    return exact + (out - exact).detach()
