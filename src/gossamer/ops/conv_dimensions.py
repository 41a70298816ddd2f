"""Convolutions of one and three dimensions with a sparse weight: as two-dimensional ones with the same matrix.

A weight [outputs, channels, k] is the matrix of one of [outputs, channels, 1, k]; one of [outputs, channels, d, h, w]
that of [outputs, channels * d, h, w], where each place along the depth is an image of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.join import wants_dense_gradient
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
from gossamer.ops import product as products
from gossamer.ops.convolution import Window, by_patches, describe_patches, window_of
from gossamer.ops.product import multiply


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    """Return a size for each dimension."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


def _refused(input: Tensor, weight: SparseTensor, bias: Any, groups: int, dims: int) -> str | None:
    if input.dtype is not weight._values.dtype or (bias is not None and bias.dtype is not input.dtype):
        return "input, weight and bias have different types"
    if torch.compiler.is_compiling() and wants_dense_gradient(weight):
        return "in a trace, the gradient of the weight is wanted at every position"
    if groups != 1:
        return "groups is not 1"
    if len(weight._dense_shape) != dims + 2 or input.dim() not in (dims + 1, dims + 2):
        return "input or weight has another number of dimensions"
    if input.shape[-dims - 1] != weight._dense_shape[1]:
        return "input and weight have different numbers of channels"
    return None


# -- one dimension


def _window_1d(input: Tensor, weight: SparseTensor, stride: Any, padding: Any, dilation: Any) -> Window | str:
    outputs, channels, width = weight._dense_shape
    stride, dilation = (1, *_tuple(stride, 1)), (1, *_tuple(dilation, 1))
    padding = padding if isinstance(padding, str) else (0, *_tuple(padding, 1))
    return window_of(input.unsqueeze(-2), (outputs, channels, 1, width), stride, padding, dilation)


def _takes_1d(
    input: Tensor, weight: SparseTensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> str | None:  # fmt: skip
    refused = _refused(input, weight, bias, groups, 1)
    if refused is not None:
        return refused
    window = _window_1d(input, weight, stride, padding, dilation)
    return window if isinstance(window, str) else None


@implements(F.conv1d, (Dense, Format, Dense), when=_takes_1d, detail=describe_patches)
def conv1d(
    input: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution along a line, with a sparse weight."""
    window = _window_1d(input, weight, stride, padding, dilation)
    assert isinstance(window, Window)
    return _convolve(input.unsqueeze(-2), weight, bias, window).squeeze(-2)


def _convolve(images: Tensor, weight: SparseTensor, bias: Tensor | None, window: Window) -> Tensor:
    by_features = products.chosen(*products.case_of(weight._values, weight.structure)).feature_major
    return by_patches(images, window, weight._dense_shape[0], by_features, partial(multiply, weight=weight, bias=bias))


# -- three dimensions


def _padding_3d(weight: SparseTensor, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...] | str:
    """Return the padding before and after each dimension, as F.pad wants it; or why there is none."""
    if padding == "same" and _tuple(stride, 3) != (1, 1, 1):
        return "padding='same' needs a stride of 1"
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(_tuple(dilation, 3), weight._dense_shape[2:], strict=True)]
        return tuple(n for t in reversed(total) for n in (t // 2, t - t // 2))
    sides = (0, 0, 0) if padding == "valid" else _tuple(padding, 3)
    return tuple(n for side in reversed(sides) for n in (side, side))


def _window_3d(shape: tuple[int, ...], weight: SparseTensor, stride: Any, dilation: Any) -> Window | str:
    """Return the sizes of the two-dimensional convolutions of images that are padded already."""
    outputs, channels, depth, *kernel = weight._dense_shape
    images = torch.empty((channels * depth, *shape[-2:]), device="meta")
    _, *step = _tuple(stride, 3)
    _, *wide = _tuple(dilation, 3)
    return window_of(images, (outputs, channels * depth, *kernel), tuple(step), 0, tuple(wide))


def _takes_3d(
    input: Tensor, weight: SparseTensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> str | None:  # fmt: skip
    refused = _refused(input, weight, bias, groups, 3)
    if refused is not None:
        return refused
    pad = _padding_3d(weight, stride, padding, dilation)
    if isinstance(pad, str):
        return pad
    depth, height, width = (s + pad[i] + pad[i + 1] for s, i in zip(input.shape[-3:], (4, 2, 0), strict=True))
    if depth < _tuple(dilation, 3)[0] * (weight._dense_shape[2] - 1) + 1:
        return "the kernel is larger than the input"
    window = _window_3d((height, width), weight, stride, dilation)
    return window if isinstance(window, str) else None


@implements(F.conv3d, (Dense, Format, Dense), when=_takes_3d, detail=describe_patches)
def conv3d(
    input: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of volumes, with a sparse weight."""
    pad = _padding_3d(weight, stride, padding, dilation)
    assert not isinstance(pad, str)
    x = F.pad(input if input.dim() == 5 else input[None], pad)
    step, wide, depth = _tuple(stride, 3)[0], _tuple(dilation, 3)[0], weight._dense_shape[2]
    slices = x.unfold(2, wide * (depth - 1) + 1, step)[..., ::wide]  # batch, channels, places, height, width, depth
    batch, channels, places, height, width, _ = slices.shape
    images = slices.permute(0, 2, 1, 5, 3, 4).reshape(batch * places, channels * depth, height, width)
    window = _window_3d((height, width), weight, stride, dilation)
    assert isinstance(window, Window)
    out = _convolve(images, weight, bias, window)
    out = out.reshape(batch, places, *out.shape[1:]).transpose(1, 2)
    return out if input.dim() == 5 else out[0]
