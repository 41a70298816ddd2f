"""Layers in eight bits: int8 weights, and activations that are rounded to eight bits token by token.

A weight, dense or sparse, is an int8 value times the scale of its row. It is stored as the bytes that the kernels read
(:mod:`gossamer.kernels.int8`). An activation is one of 255 levels between the smallest and the largest value of its
token, or of all calibration inputs of the layer. Sums are exact.

The error is bounded: with weights w, their scales s and the scale t of a token x, output r changes by at most
``s[r] / 2 * sum(|x|) + t / 2 * sum(|w[r]|) + n * s[r] * t / 4``, with sums over the n columns that row r keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from gossamer import native
from gossamer.kernels.int8.convolution import matrix_of
from gossamer.kernels.int8.layout import pack_as, usual
from gossamer.kernels.int8.linear import int8_linear
from gossamer.kernels.int8.weight import rounded, with_kernel, with_range
from gossamer.models.int8_conv import DynamicInt8Conv, is_int8_convolution
from gossamer.models.int8_layer import Int8Layer
from gossamer.models.modules import dense_class
from gossamer.models.names import Where, chosen, inputs_first
from gossamer.models.observe import observe
from gossamer.models.quantized_common import check_tokens, dense_layer, is_transformed, linear_like
from gossamer.models.surgery import put, put_all
from gossamer.models.weights import Weight, all_weights

_records, _is_traced = torch.is_grad_enabled, torch.compiler.is_dynamo_compiling


class DynamicInt8Linear(Int8Layer):
    """x @ weight.T + bias with weights and activations in eight bits.

    Made by ``gs.quantize_(model, "int8")``. It is for inference: gradients go through it to ``x`` and the bias as if
    nothing were rounded; the weight has none.

    Parameters
    ----------
    packed
        The weight's bytes, :func:`gossamer.kernels.int8.layout.pack_as`.
    bias
        Or None.
    shape
        Outputs and inputs.
    inputs_first
        Whether the layer was a Conv1D of transformers; :meth:`as_dense` then returns one.
    dtype
        Type of the weight before it was quantized; :meth:`as_dense` uses it again.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.quantize_(torch.nn.Sequential(torch.nn.Linear(64, 32)), "int8")
    >>> model[0]
    DynamicInt8Linear(in_features=64, out_features=32, bias=True, int8 dense)
    >>> model(torch.randn(5, 64)).shape
    torch.Size([5, 32])
    """

    operator = "linear"

    def __init__(
        self,
        packed: Tensor,
        bias: nn.Parameter | None,
        shape: tuple[int, int],
        inputs_first: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(packed, bias, dtype)
        self.out_features, self.in_features = shape
        self.inputs_first = inputs_first

    @property
    def matrix_shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return self.out_features, self.in_features

    def from_matrix(self, matrix: Tensor) -> Tensor:
        """Return the weight, [outputs, inputs], or the mask: the matrix itself."""
        return matrix

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, of the type of ``x``."""
        packed: Any = self._buffers["packed"]  # a lookup by attribute takes half a microsecond longer
        bias = self._parameters["bias"]
        if not _is_traced() and not _records():  # nothing to trace or to record
            out = native.direct("int8")(packed, x, bias, self.out_features, 0)
            if out is not None:
                return out
        check_tokens(x, self.in_features)
        if self.kernels and packed.is_cpu and not is_transformed(x):
            return self.compute(packed, x)
        return self.compute_dense(x)

    def compute(self, packed: Tensor, x: Tensor) -> Tensor:
        """Return the layer's output with these bytes as the weight, by the kernels."""
        return int8_linear(x, packed, self.out_features, self.bias)

    def compute_dense(self, x: Tensor) -> Tensor:
        """Return the layer's output by a dense weight in floating point, where there are no kernels."""
        return linear_like(x, self.weight, self.bias)

    def as_dense(self) -> nn.Module:
        """Return a dense layer with the same weight: a Linear, or a Conv1D if it was one."""
        return dense_layer(self.weight.to(self.dtype), self.bias, self.inputs_first).train(self.training)

    def sizes_text(self) -> str:
        """Return the sizes of the layer, as torch's ``repr`` shows them."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def quantize_dynamic_(model: nn.Module, where: Where, calibration: Iterable[Any] | None = None) -> nn.Module:
    """Let linear layers and convolutions, dense and sparse, compute in eight bits; see :func:`gossamer.quantize_`."""
    weights = {name: weight for name, weight in all_weights(model).items() if _suits(weight)}
    if not weights:
        raise ValueError(
            f"{type(model).__name__} has no linear layer or convolution to quantize: it must be in floating point, on "
            "a CPU, and not tied to an embedding. Layers that are already quantized don't count, nor do convolutions "
            "that are depthwise, transposed or of three dimensions."
        )
    names = chosen(weights, where)
    layers = [module for name in names for module, _ in weights[name].places]
    ranges = {} if calibration is None else observe(model, layers, calibration)
    made: dict[int, Int8Layer] = {}
    for name in names:
        try:
            layers_of = quantized(weights[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        for module, layer in layers_of:
            if module in ranges:
                layer.packed = with_range(layer.packed, ranges[module])
            made[id(module)] = layer
    return put_all(model, made)


@torch.no_grad()
def quantized(weight: Weight) -> list[tuple[nn.Module, Int8Layer]]:
    """Return each module with this weight, and a layer in eight bits for it, in the layout that is mostly the fastest.

    Layers that are tied hold the same bytes.
    """
    first: Any = weight.module
    dense, mask = weight.dense(), weight.mask() if weight.is_sparse else weight.dense() != 0
    if is_int8_convolution(first):
        images = first.out_channels, -1, *(1, *first.kernel_size)[-2:]
        dense, mask = (matrix_of(each.reshape(images), first.groups) for each in (dense, mask))
    elif inputs_first(first):
        dense, mask = dense.t(), mask.t()
    packed, shape = pack_as(rounded(dense), mask, usual(mask)), (mask.shape[0], mask.shape[1])
    if is_int8_convolution(first):
        packed = with_kernel(packed, first.kernel_size, first.groups)
    return [(module, _layer(module, packed, shape).train(module.training)) for module, _ in weight.places]


def _layer(like: Any, packed: Tensor, shape: tuple[int, int]) -> Int8Layer:
    """A layer in eight bits in place of this one, with these bytes as the matrix of its weight."""
    if is_int8_convolution(like):
        return DynamicInt8Conv(packed, like.bias, like, like.weight.dtype)
    return DynamicInt8Linear(packed, like.bias, shape, inputs_first(like), like.weight.dtype)


def _suits(weight: Weight) -> bool:
    """Is it the weight of linear layers or convolutions alone? One that is tied to an embedding is not."""
    linear = all(n == "weight" and (dense_class(m) is nn.Linear or inputs_first(m)) for m, n in weight.places)
    images = all(n == "weight" and is_int8_convolution(m) for m, n in weight.places)
    images = images and len({m.groups for m, _ in weight.places}) == 1
    return (linear or images) and weight.parameter.is_floating_point() and weight.parameter.is_cpu


def check_packed(model: nn.Module, name: str, tensor: Tensor) -> None:
    """Raise ValueError if a tensor of a file has the name of a layer's bytes and doesn't fit."""
    path, _, last = name.rpartition(".")
    layer = model.get_submodule(path)
    if last == "packed" and isinstance(layer, Int8Layer):
        layer.check_bytes(tensor)


def expect_packed(model: nn.Module, sizes: Mapping[str, int]) -> dict[str, nn.Module]:
    """Put an empty layer in eight bits of this size where a layer of this name is; return what was there."""
    taken = {}
    for name, size in sizes.items():
        try:
            layer: Any = model.get_submodule(name)
        except AttributeError:
            continue  # the caller reports that it is missing
        packed = torch.empty(size, dtype=torch.uint8, device="meta")
        made = _empty(layer, packed)
        if made is not None:
            put(model, name, made)
            taken[name] = layer
    return taken


def _empty(layer: Any, packed: Tensor) -> Int8Layer | None:
    """A layer in eight bits that a file will fill; None if this one has no such form."""
    if isinstance(layer, DynamicInt8Conv):
        return DynamicInt8Conv(packed, layer.bias, layer, layer.dtype)
    if isinstance(layer, DynamicInt8Linear):
        return DynamicInt8Linear(packed, layer.bias, layer.matrix_shape, layer.inputs_first, layer.dtype)
    if is_int8_convolution(layer):
        return _layer(layer, packed, (0, 0))
    if inputs_first(layer):
        return _layer(layer, packed, (layer.nf, layer.nx))
    return _layer(layer, packed, (layer.out_features, layer.in_features)) if dense_class(layer) is nn.Linear else None
