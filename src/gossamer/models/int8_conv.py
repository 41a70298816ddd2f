"""Convolutions in eight bits: int8 weights, and images that are rounded to eight bits, each with its own range."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kernels.int8.convolution import int8_conv2d, weight_of
from gossamer.models.coverage import is_depthwise
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.modules import dense_class
from gossamer.models.quantized_common import is_transformed
from gossamer.ops.convolution import Window, window_of

_KINDS: dict[int, Any] = {1: nn.Conv1d, 2: nn.Conv2d}
_CALLS: dict[int, Any] = {1: F.conv1d, 2: F.conv2d}
_SIZES = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups", "padding_mode")


class DynamicInt8Conv(Int8Layer):
    """A convolution of one or two dimensions with weights and activations in eight bits.

    Made by ``gs.quantize_(model, "int8")``. It is for inference: gradients go through it to ``x`` and the bias as if
    nothing were rounded; the weight has none. All activations of an image have one range. Results have the memory
    format of the images; channels_last is a little faster.

    Parameters
    ----------
    packed
        The bytes of the weight's matrix, :func:`gossamer.kernels.int8.convolution.matrix_of`.
    bias
        Or None.
    like
        The convolution whose sizes it has: of torch, sparse, or in eight bits.
    dtype
        Of the weight that it stands for.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.quantize_(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1)), "int8")
    >>> model[0]
    DynamicInt8Conv(3, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1), int8 dense)
    >>> model(torch.randn(2, 3, 9, 9)).shape
    torch.Size([2, 8, 9, 9])
    """

    in_channels: int
    out_channels: int
    groups: int
    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: Any
    padding_mode: str

    def __init__(self, packed: Tensor, bias: nn.Parameter | None, like: nn.Module, dtype: torch.dtype) -> None:
        super().__init__(packed, bias, dtype)
        for name in _SIZES:
            setattr(self, name, getattr(like, name))
        self.dims = len(self.kernel_size)
        self._reversed_padding_repeated_twice: list[int] = like._reversed_padding_repeated_twice  # type: ignore[assignment]
        self.operator, self.output_padding = f"conv{self.dims}d", (0,) * self.dims  # which torch's repr asks for

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the kernel; one dimension is an image of one row."""
        return (1, *self.kernel_size)[-2:]  # type: ignore[return-value]

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Outputs, and positions of the kernel times channels."""
        height, width = self.kernel
        return self.out_channels, height * width * self.in_channels

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weight."""
        return self.out_channels, self.in_channels // self.groups, *self.kernel_size

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """Return the weight, or the mask, whose matrix this is."""
        return weight_of(matrix, self.kernel, self.groups).reshape(self.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the type of ``x`` and in its memory format."""
        if x.dim() not in (self.dims + 1, self.dims + 2) or x.shape[-self.dims - 1] != self.in_channels:
            wanted = ", ".join(["images", str(self.in_channels), *("height", "width")[-self.dims :]])
            raise ValueError(f"x has shape {tuple(x.shape)}; it must be [{wanted}], or the same without images")
        if not x.is_floating_point():
            raise TypeError(f"x is {x.dtype}: a quantized layer takes floats, so give it x.float()")
        packed = self.packed
        if self.kernels and packed.is_cpu and not is_transformed(x):
            return self.compute(packed, x)
        return self.compute_dense(x)

    def compute(self, packed: Tensor, x: Tensor) -> Tensor:
        """Return the layer's output with these bytes as the weight, by the kernels."""
        images, padding = self._padded(x if x.dim() == self.dims + 2 else x[None])
        window = self._window(images, padding)
        images = images if self.dims == 2 else images.unsqueeze(-2)
        out = int8_conv2d(images, packed, self.out_channels, window.sizes, self.bias)
        out = out if self.dims == 2 else out.squeeze(-2)
        return out if x.dim() == self.dims + 2 else out[0]

    def tokens(self, shape: tuple[int, ...]) -> int:
        """Return how many vectors are multiplied by the matrix, for an input of this shape: pixels of the result."""
        images, padding = self._padded(torch.empty((1, *shape)[-self.dims - 2 :], device="meta"))
        return len(images) * math.prod(self._window(images, padding).places)

    def _window(self, images: Tensor, padding: Any) -> Window:
        sizes = images if self.dims == 2 else images.unsqueeze(-2)
        window = window_of(sizes, (0, 0, *self.kernel), _pair(self.stride, 1), padding, _pair(self.dilation, 1))
        if not isinstance(window, Window):
            raise ValueError(f"x has shape {tuple(images.shape)}, kernel_size is {self.kernel_size}: {window}")
        return window

    def _padded(self, images: Tensor) -> tuple[Tensor, Any]:
        """Return images, and the zeros that the product adds around them; other paddings are added here."""
        if self.padding_mode == "zeros":
            return images, self.padding if isinstance(self.padding, str) else _pair(self.padding, 0)
        return F.pad(images, self._reversed_padding_repeated_twice, mode=self.padding_mode), (0, 0)

    def compute_dense(self, x: Tensor) -> Tensor:
        """Return the layer's output by a dense weight in floating point, where there are no kernels."""
        zeros = self.padding_mode == "zeros"
        images = x if zeros else F.pad(x, self._reversed_padding_repeated_twice, mode=self.padding_mode)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        sizes = self.stride, self.padding if zeros else 0, self.dilation, self.groups
        return _CALLS[self.dims](images, self.weight.to(x.dtype), bias, *sizes)

    def as_dense(self) -> nn.Module:
        """Return torch's convolution with the same weight."""
        sizes: Any = {name: getattr(self, name) for name in _SIZES}
        dense = _KINDS[self.dims](**sizes, bias=False, device="meta")
        dense.weight, dense.bias = nn.Parameter(self.weight.to(self.dtype)), self.bias
        return dense.train(self.training)

    def sizes_text(self) -> str:
        """Return the sizes of the layer, as torch's ``repr`` shows them."""
        return _KINDS[self.dims].extra_repr(self)


def _pair(sizes: tuple[int, ...], missing: int) -> tuple[int, int]:
    """Sizes down and across; those of one dimension are across."""
    return (missing, *sizes)[-2:]  # type: ignore[return-value]


def is_int8_convolution(module: nn.Module) -> bool:
    """Is there a form in eight bits of this convolution? Depthwise ones have none: patches cost more than products.

    Examples
    --------
    >>> import torch
    >>> [is_int8_convolution(torch.nn.Conv2d(8, 8, 3, groups=groups)) for groups in (1, 2, 8)]
    [True, True, False]
    """
    return dense_class(module) in (nn.Conv1d, nn.Conv2d) and not is_depthwise(module)
