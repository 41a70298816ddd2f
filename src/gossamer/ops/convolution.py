"""Convolutions with a sparse weight: patches of the input are the tokens of a product.

If no gradient is recorded, the convolution kernels need no patches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.join import values_of, wants_dense_gradient
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked, Structure
from gossamer.kernels import product as kernels
from gossamer.kernels.product import Product
from gossamer.ops import product as products
from gossamer.ops.grouped import takes_groups, ungrouped
from gossamer.ops.product import kernel_of, multiply, product


class Options(NamedTuple):
    """What ``F.conv1d``, ``conv2d`` and ``conv3d`` take after the bias."""

    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class Window(NamedTuple):
    """The sizes of a convolution."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom, the order of F.pad
    places: tuple[int, int]  # height and width of the result

    @property
    def sizes(self) -> tuple[int, ...]:
        """What kernels take that convolve."""
        return (*self.kernel, *self.stride, *self.dilation, *self.padding)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def window_of(input: Tensor, shape: Sequence[int], stride: Any, padding: Any, dilation: Any) -> Window | str:
    """Return the sizes of a convolution, or why there are none."""
    kernel, stride, dilation = tuple(shape[2:]), _pair(stride), _pair(dilation)
    if padding == "same" and stride != (1, 1):
        return "padding='same' needs a stride of 1"
    if padding == "same":
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        pad = (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
    else:
        h, w = (0, 0) if padding == "valid" else _pair(padding)
        pad = (w, w, h, h)
    sizes = (input.shape[-2] + pad[2] + pad[3], input.shape[-1] + pad[0] + pad[1])
    height, width = ((sizes[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1))
    if height < 1 or width < 1:
        return "the kernel is larger than the input"
    return Window(kernel, stride, dilation, pad, (height, width))  # type: ignore[arg-type]


def takes_conv2d(
    input: Tensor, shape: Sequence[int], stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> str | None:
    """Return None if a convolution with a weight of this shape is a product of patches, else the reason why not.

    One in groups is, by the weight of :func:`gossamer.ops.grouped.ungrouped`.

    Examples
    --------
    >>> import torch
    >>> takes_conv2d(torch.zeros(1, 4, 2, 8), (6, 4, 3, 3))
    'the kernel is larger than the input'
    """
    if len(shape) != 4 or input.dim() not in (3, 4):
        return "input or weight has another number of dimensions"
    if input.shape[-3] != shape[1] * groups:
        return "input and weight have different numbers of channels"
    window = window_of(input, shape, stride, padding, dilation)
    return window if isinstance(window, str) else None


def convolve(
    x: Tensor,
    values: Tensor,
    structure: Structure,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
) -> Tensor:
    """Return the convolution of images with a weight given by its values and its structure, as ``product`` takes them.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.ones(1, 1, 2, 2), "50%", format=gs.COO())
    >>> convolve(torch.ones(1, 1, 2, 2), w.values(), w.structure)
    tensor([[[[2.]]]])
    """
    window = window_of(x, structure.shape, stride, padding, dilation)
    assert isinstance(window, Window)
    kernel = kernel_of(x, values, structure)
    records = kernels.recorded() if torch.compiler.is_compiling() else kernels.needed(x, values, bias)
    if kernel.convolves and not records:
        return _by_kernel(kernel, x, values, bias, window)

    def times(tokens: Tensor, feature_major: bool | None = None) -> Tensor:
        return product(tokens, values, structure, bias, feature_major=feature_major)

    return by_patches(x, window, structure.shape[0], kernel.feature_major, times)


def _by_kernel(kernel: Product, input: Tensor, values: Tensor, bias: Tensor | None, window: Window) -> Tensor:
    images = input if input.dim() == 4 else input[None]
    out = kernel.convolve(images, values, bias, window.sizes)
    return out if input.dim() == 4 else out[0]


def by_patches(input: Tensor, window: Window, rows: int, by_features: bool, times: Callable[..., Tensor]) -> Tensor:
    """Convolve by a product of patches, ``times(tokens)``, which likes tokens feature by feature or not."""
    x = input if input.dim() == 4 else input[None]
    x = F.pad(x, window.padding) if any(window.padding) else x
    pointwise = window.kernel == window.stride == (1, 1)
    patches = x.flatten(2) if pointwise else F.unfold(x, window.kernel, window.dilation, 0, window.stride)
    batch, features, count = patches.shape  # of each image, features at every place of the result
    if by_features:
        tokens = patches.transpose(0, 1).reshape(features, -1).t()
        out = times(tokens, feature_major=True).t().reshape(rows, batch, count).transpose(0, 1)
    else:
        tokens = patches.transpose(1, 2).reshape(-1, features)
        out = times(tokens).view(batch, count, rows).transpose(1, 2)
    out = out.reshape(batch, rows, *window.places)
    return out if input.dim() == 4 else out[0]


def refused(input: Tensor, weight: SparseTensor, bias: Tensor | None) -> str | None:
    """Return why no convolution with these operands is a product of patches; None if one may be."""
    if input.dtype is not weight._values.dtype or (bias is not None and bias.dtype is not input.dtype):
        return "input, weight and bias have different types"
    if torch.compiler.is_compiling() and wants_dense_gradient(weight):
        return "in a trace, the gradient of the weight is wanted at every position"
    return None


def _takes(input: Tensor, weight: SparseTensor, bias: Any = None, *args: Any, **kwargs: Any) -> str | None:
    options = Options(*args, **kwargs)
    return (
        refused(input, weight, bias)
        or takes_conv2d(input, weight._dense_shape, *options)
        or takes_groups(input.shape[-3], weight, options.groups)
    )


def describe_patches(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> str:
    """Say what runs, for :func:`gossamer.explain`."""
    direct = products.chosen(*products.case_of(weight._values, weight.structure)).convolves
    how = "pixels of the result are the tokens" if direct else "patches of the input are the tokens"
    return f"{how}, {products.describe(weight)}"


@implements(F.conv2d, (Dense, Format, Dense), when=_takes, detail=describe_patches)
def conv2d(input: Tensor, weight: SparseTensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Tensor:
    """Convolution with a sparse weight."""
    stride, padding, dilation, groups = Options(*args, **kwargs)
    window = window_of(input, weight._dense_shape, stride, padding, dilation)
    assert isinstance(window, Window)
    return convolved(input, ungrouped(weight, groups), bias, window)


def convolved(images: Tensor, weight: SparseTensor, bias: Tensor | None, window: Window) -> Tensor:
    """Return the convolution of images with the matrix that a weight is."""
    if torch.compiler.is_compiling():
        kernel, records = kernel_of(images, values_of(weight), weight.structure), kernels.recorded()
    else:
        kernel = kernel_of(images, weight._values, weight._structure)
        records = kernels.needed(images, weight, bias)
    if kernel.convolves and not records:
        return _by_kernel(kernel, images, values_of(weight), bias, window)
    times = partial(multiply, weight=weight, bias=bias)
    return by_patches(images, window, weight._dense_shape[0], kernel.feature_major, times)


@implements(F.conv2d, (Dense, Masked, Dense))
def conv2d_masked(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A masked weight is a dense one whose other values are zero."""
    return F.conv2d(input, values_of(weight) if weight.grad_format is None else weight.to_dense(), *args, **kwargs)
