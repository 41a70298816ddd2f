"""A linear layer over a weight of 8 or 4 bits in any layout."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.kernels.product import matrix_of_tokens
from gossamer.kernels.quantized.dense import linear_dense8
from gossamer.kernels.quantized.layout import Layout
from gossamer.kernels.quantized.weight import Arrays
from gossamer.kernels.vnm import eight_cuda, weight_only_cuda  # noqa: F401 - the GPU's part of the operators

_HALF = torch.float16, torch.bfloat16


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
    tokens = matrix_of_tokens(x)
    if x.is_cuda and x.dtype not in _HALF:
        tokens = tokens.bfloat16()
    if bias is not None and bias.dtype is not tokens.dtype:
        bias = bias.to(tokens.dtype)
    out = _matrix(tokens, arrays, layout, shape, bias)
    out = out if out.dtype is x.dtype else out.to(x.dtype)
    return out if x.dim() == 2 else out.reshape(*x.shape[:-1], shape[0])


def _matrix(x: Tensor, arrays: Arrays, layout: Layout, shape: tuple[int, int], bias: Tensor | None) -> Tensor:
    values, scale, shared, meta = arrays
    if not layout.m:
        return linear_dense8(values, scale, x, bias)
    v = 0 if layout.v == "all" else layout.v
    operators = torch.ops.gossamer
    if not layout.weights_only:
        return operators.vnm_8bit(values, shared, meta, scale, x, bias, *shape, v, layout.m, 0)
    if layout.numbers == "int4" and x.is_cuda and scale.dtype is not x.dtype:
        scale = scale.to(x.dtype)
    return operators.vnm_weight_only(values, shared, meta, scale, x, bias, *shape, v, layout.m, 0)
