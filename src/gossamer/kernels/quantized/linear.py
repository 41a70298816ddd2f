"""A linear layer over a weight of 8 or 4 bits in any layout."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.kernels.bitmap import eight_cuda as _bitmap_cuda  # noqa: F401 - the GPU's part of an operator
from gossamer.kernels.product import by_tokens
from gossamer.kernels.quantized.dense import linear_dense8
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.weight import Arrays
from gossamer.kernels.vnm import eight_cuda, weight_only_cuda  # noqa: F401 - the GPU's part of the operators

_HALF = torch.float16, torch.bfloat16
_bitmap = torch.ops.gossamer.bitmap_8bit.default
_eight, _weight_only = torch.ops.gossamer.vnm_8bit.default, torch.ops.gossamer.vnm_weight_only.default


def quantized_linear(x: Tensor, arrays: Arrays, layout: Layout, shape: tuple[int, int], bias: Tensor | None) -> Tensor:
    """Return x @ W.T + bias, without gradients, in the type of x; on a GPU float32 is computed as bfloat16.

    Examples
    --------
    >>> import torch
    >>> from gossamer.kernels.quantized.weight import quantized
    >>> layout = Layout("fp8", "all", 4)
    >>> weight = quantized(torch.tensor([[2.0, 0, 0, 1.0]]), layout)
    >>> quantized_linear(torch.ones(1, 4).bfloat16(), weight, layout, (1, 4), None)
    tensor([[3.]], dtype=torch.bfloat16)
    """
    if x.dim() < 2:
        return quantized_linear(x.unsqueeze(0), arrays, layout, shape, bias).squeeze(0)
    tokens = x.bfloat16() if x.is_cuda and x.dtype not in _HALF else x
    if bias is not None and bias.dtype is not tokens.dtype:
        bias = bias.to(tokens.dtype)
    out = _tokens(tokens, arrays, layout, shape, bias)
    return out if out.dtype is x.dtype else out.to(x.dtype)


def _tokens(x: Tensor, arrays: Arrays, layout: Layout, shape: tuple[int, int], bias: Tensor | None) -> Tensor:
    values, scale, shared, meta = arrays
    if layout.dense:
        return by_tokens(linear_dense8, 2)(values, scale, x, bias)
    if layout.bitmap:
        return _bitmap(values, meta, shared, scale, x, bias, *shape, 0)
    v = 0 if layout.v == "all" else layout.v
    if not layout.weights_only:
        return _eight(values, shared, meta, scale, x, bias, *shape, v, layout.m, 0)
    if layout.numbers == "int4" and x.is_cuda and scale.dtype is not x.dtype:
        scale = scale.to(x.dtype)
    return _weight_only(values, shared, meta, scale, x, bias, *shape, v, layout.m, 0)
