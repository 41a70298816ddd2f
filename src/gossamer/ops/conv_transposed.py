"""Transposed convolutions with a sparse weight: each pixel is a token, and overlapping products are added up.

A weight [channels, outputs, ...] is the matrix of channels by everything else. Pixels times that matrix are patches of
the result, which overlap: torch's ``fold`` adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.join import values_of, wants_dense_gradient
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked
from gossamer.ops.conv_dimensions import tuple_of
from gossamer.ops.convolution import refused
from gossamer.ops.grouped import ungrouped
from gossamer.ops.product import describe, multiply


class _Options(NamedTuple):
    """What ``F.conv_transpose2d`` takes after the bias."""

    stride: Any = 1
    padding: Any = 0
    output_padding: Any = 0
    groups: int = 1
    dilation: Any = 1


class _Sizes(NamedTuple):
    """One number for each dimension."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    out: tuple[int, ...]


def _sizes(input: Tensor, shape: Sequence[int], options: _Options) -> _Sizes | str:
    """Return the sizes of a transposed convolution, or why there are none."""
    dims, kernel = len(shape) - 2, tuple(shape[2:])
    stride, padding, more, dilation = (
        tuple_of(value, dims) for value in (options.stride, options.padding, options.output_padding, options.dilation)
    )
    if any(m >= s for m, s in zip(more, stride, strict=True)):
        return "output_padding is not smaller than the stride"
    out = tuple(
        (size - 1) * s - 2 * p + d * (k - 1) + m + 1
        for size, s, p, d, k, m in zip(input.shape[-dims:], stride, padding, dilation, kernel, more, strict=True)
    )
    if min(out) < 1 or min(input.shape[-dims:]) < 1:
        return "the result would be empty"
    return _Sizes(kernel, stride, padding, dilation, out)


def _takes(input: Tensor, weight: SparseTensor, bias: Any = None, *args: Any, **kwargs: Any) -> str | None:
    options, shape = _Options(*args, **kwargs), weight._dense_shape
    dims = len(shape) - 2
    if dims not in (1, 2, 3) or input.dim() not in (dims + 1, dims + 2):
        return "input or weight has another number of dimensions"
    if options.groups < 1 or shape[0] % options.groups or input.shape[-dims - 1] != shape[0]:
        return "input and weight have different numbers of channels"
    if options.groups > 1 and (torch.compiler.is_compiling() or wants_dense_gradient(weight)):
        return "groups is not 1, in a trace or with a gradient that is wanted at every position"
    sizes = refused(input, weight, bias) or _sizes(input, shape, options)
    return sizes if isinstance(sizes, str) else None


def _describe(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> str:
    return f"pixels of the input are the tokens, {describe(weight, transpose=True)}"


def _transposed(input: Tensor, weight: SparseTensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Transposed convolution with a sparse weight."""
    options = _Options(*args, **kwargs)
    sizes = _sizes(input, weight._dense_shape, options)
    assert isinstance(sizes, _Sizes)
    weight = ungrouped(weight, options.groups)
    dims = len(sizes.out)
    x = input if input.dim() == dims + 2 else input[None]
    batch, channels = x.shape[:2]
    tokens = x.flatten(2).transpose(1, 2).reshape(-1, channels)
    products = multiply(tokens, weight, transpose=True)  # batch and pixels, outputs and kernel
    images = products.view(batch, -1, products.shape[1])
    turned = [image.t().contiguous() for image in images]  # torch is fast at transposing matrices, not stacks of them
    patches = torch.stack(turned) if batch != 1 else turned[0][None]
    out = added_up(patches, x.shape[2:], sizes)
    if bias is not None:
        out = out + bias.view(-1, *(1,) * dims)
    return out if input.dim() == dims + 2 else out[0]


def added_up(patches: Tensor, places: Sequence[int], sizes: _Sizes) -> Tensor:
    """Add up patches [batch, outputs x kernel, places] of images in one, two or three dimensions."""
    if len(sizes.out) == 3:
        return _volumes(patches, places, sizes)
    two = (
        sizes
        if len(sizes.out) == 2
        else _Sizes((1, *sizes.kernel), (1, *sizes.stride), (0, *sizes.padding), (1, *sizes.dilation), (1, *sizes.out))
    )
    # fold wants the places of all patches that fit, and output_padding adds none, being smaller than a stride
    out = F.fold(patches, two.out, two.kernel, two.dilation, two.padding, two.stride)
    return out if len(sizes.out) == 2 else out.squeeze(2)


def _volumes(patches: Tensor, places: Sequence[int], sizes: _Sizes) -> Tensor:
    """Add up patches of volumes: those of each place along the depth of the kernel, as images, then these."""
    batch, depth, (kernel, *area) = patches.shape[0], places[0], sizes.kernel
    flat = _Sizes(*(each[1:] for each in sizes))
    parts = patches.view(batch, -1, kernel, math.prod(area), depth, math.prod(places[1:]))
    outputs, step, wide = parts.shape[1], sizes.stride[0], sizes.dilation[0]
    images = parts.permute(2, 0, 4, 1, 3, 5).reshape(kernel * batch * depth, -1, parts.shape[-1])
    slices = added_up(images, places[1:], flat).view(kernel, batch, depth, outputs, *flat.out).transpose(2, 3)
    before = sizes.padding[0]
    whole = patches.new_zeros(
        batch, outputs, max((depth - 1) * step + wide * (kernel - 1) + 1, before + sizes.out[0]), *flat.out
    )
    for i in range(kernel):
        whole[:, :, i * wide : i * wide + (depth - 1) * step + 1 : step] += slices[i]
    return whole[:, :, before : before + sizes.out[0]]


def _register(function: Any) -> None:
    """Register one of torch's three functions; a masked weight is a dense one whose other values are zero."""

    def masked(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
        values = values_of(weight) if weight.grad_format is None else weight.to_dense()
        out: Tensor = function(input, values, *args, **kwargs)
        return out

    masked.__name__ = masked.__qualname__ = f"{function.__name__}_masked"
    implements(function, (Dense, Format, Dense), when=_takes, detail=_describe)(_transposed)
    implements(function, (Dense, Masked, Dense))(masked)


for _function in (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d):
    _register(_function)
