"""Convolutions of one and three dimensions with a sparse weight: as two-dimensional ones with the same matrix.

A weight [outputs, channels, k] is the matrix of one of [outputs, channels, 1, k]; one of [outputs, channels, d, h, w]
that of [outputs, channels * d, h, w], where each place along the depth is an image of its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
from gossamer.ops.convolution import Options, Window, convolved, describe_patches, refused, window_of
from gossamer.ops.grouped import takes_groups, ungrouped


def tuple_of(value: Any, count: int) -> tuple[int, ...]:
    """Return a size for each dimension."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


def _refused(input: Tensor, weight: SparseTensor, bias: Any, groups: int, dims: int) -> str | None:
    if len(weight._dense_shape) != dims + 2 or input.dim() not in (dims + 1, dims + 2):
        return "input or weight has another number of dimensions"
    return refused(input, weight, bias) or takes_groups(input.shape[-dims - 1], weight, groups)


# -- one dimension


def _window_1d(input: Tensor, weight: SparseTensor, stride: Any, padding: Any, dilation: Any) -> Window | str:
    outputs, channels, width = weight._dense_shape
    stride, dilation = (1, *tuple_of(stride, 1)), (1, *tuple_of(dilation, 1))
    padding = padding if isinstance(padding, str) else (0, *tuple_of(padding, 1))
    return window_of(input.unsqueeze(-2), (outputs, channels, 1, width), stride, padding, dilation)


def _takes_1d(input: Tensor, weight: SparseTensor, bias: Any = None, *args: Any, **kwargs: Any) -> str | None:
    stride, padding, dilation, groups = Options(*args, **kwargs)
    reason = _refused(input, weight, bias, groups, 1)
    window = reason or _window_1d(input, weight, stride, padding, dilation)
    return window if isinstance(window, str) else None


@implements(F.conv1d, (Dense, Format, Dense), when=_takes_1d, detail=describe_patches)
def conv1d(input: Tensor, weight: SparseTensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Convolution along a line, with a sparse weight."""
    stride, padding, dilation, groups = Options(*args, **kwargs)
    weight = ungrouped(weight, groups)
    window = _window_1d(input, weight, stride, padding, dilation)
    assert isinstance(window, Window)
    return convolved(input.unsqueeze(-2), weight, bias, window).squeeze(-2)


# -- three dimensions


def _padding_3d(weight: SparseTensor, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...] | str:
    """Return the padding before and after each dimension, as F.pad wants it; or why there is none."""
    if padding == "same" and tuple_of(stride, 3) != (1, 1, 1):
        return "padding='same' needs a stride of 1"
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(tuple_of(dilation, 3), weight._dense_shape[2:], strict=True)]
        return tuple(n for t in reversed(total) for n in (t // 2, t - t // 2))
    sides = (0, 0, 0) if padding == "valid" else tuple_of(padding, 3)
    return tuple(n for side in reversed(sides) for n in (side, side))


def _window_3d(shape: tuple[int, ...], weight: SparseTensor, stride: Any, dilation: Any) -> Window | str:
    """Return the sizes of the two-dimensional convolutions of images that are padded already."""
    outputs, channels, depth, *kernel = weight._dense_shape
    images = torch.empty((channels * depth, *shape[-2:]), device="meta")
    _, *step = tuple_of(stride, 3)
    _, *wide = tuple_of(dilation, 3)
    return window_of(images, (outputs, channels * depth, *kernel), tuple(step), 0, tuple(wide))


def _takes_3d(input: Tensor, weight: SparseTensor, bias: Any = None, *args: Any, **kwargs: Any) -> str | None:
    stride, padding, dilation, groups = Options(*args, **kwargs)
    reason = _refused(input, weight, bias, groups, 3)
    pad = reason or _padding_3d(weight, stride, padding, dilation)
    if isinstance(pad, str):
        return pad
    depth, height, width = (s + pad[i] + pad[i + 1] for s, i in zip(input.shape[-3:], (4, 2, 0), strict=True))
    if depth < tuple_of(dilation, 3)[0] * (weight._dense_shape[2] - 1) + 1:
        return "the kernel is larger than the input"
    window = _window_3d((height, width), weight, stride, dilation)
    return window if isinstance(window, str) else None


@implements(F.conv3d, (Dense, Format, Dense), when=_takes_3d, detail=describe_patches)
def conv3d(input: Tensor, weight: SparseTensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Convolution of volumes, with a sparse weight."""
    stride, padding, dilation, groups = Options(*args, **kwargs)
    weight = ungrouped(weight, groups)
    pad = _padding_3d(weight, stride, padding, dilation)
    assert not isinstance(pad, str)
    x = F.pad(input if input.dim() == 5 else input[None], pad)
    step, wide, depth = tuple_of(stride, 3)[0], tuple_of(dilation, 3)[0], weight._dense_shape[2]
    slices = x.unfold(2, wide * (depth - 1) + 1, step)[..., ::wide]  # batch, channels, places, height, width, depth
    batch, channels, places, height, width, _ = slices.shape
    images = slices.permute(0, 2, 1, 5, 3, 4).reshape(batch * places, channels * depth, height, width)
    window = _window_3d((height, width), weight, stride, dilation)
    assert isinstance(window, Window)
    out = convolved(images, weight, bias, window)
    out = out.reshape(batch, places, *out.shape[1:]).transpose(1, 2)
    return out if input.dim() == 5 else out[0]
