"""Layers other than linear: embedding, convolution, normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, entries_of, values_of
from gossamer.formats import Dense, Format, Masked
from gossamer.ops.product import product
from gossamer.ops.shape import reshape, select_entries


@implements(F.embedding, (Dense, Format))
def embedding(
    input: Tensor,
    weight: SparseTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Rows of a sparse table, as a dense tensor."""
    if max_norm is not None or scale_grad_by_freq or weight.dim() != 2 or input.dtype not in (torch.int64, torch.int32):
        return NotImplemented
    rows, cols = weight._dense_shape
    index = input.reshape(-1).long()
    if index.numel() and (int(index.min()) < 0 or int(index.max()) >= rows):
        raise IndexError("index out of range in self")
    source, entry = select_entries(weight, 0, index)
    keys, values = entries_of(weight)
    picked = values[entry]
    if padding_idx is not None and padding_idx >= -rows:
        picked = torch.where(index[source] == padding_idx % rows, picked.detach(), picked)
    flat = values.new_zeros(index.numel() * cols).index_put((source * cols + keys[entry] % max(cols, 1),), picked)
    return flat.view(*input.shape, cols)


@implements(F.embedding, (Dense, Masked))
def embedding_masked(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A masked table is a dense one whose other values are zero."""
    return F.embedding(input, values_of(weight), *args, **kwargs)


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _padding(padding: Any, kernel: tuple[int, int], dilation: tuple[int, int], stride: tuple[int, int]) -> Any:
    """Padding left, right, top, bottom, as F.pad wants it."""
    if padding == "valid":
        return (0, 0, 0, 0)
    if padding == "same":
        if stride != (1, 1):
            return None
        total = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        return (total[1] // 2, total[1] - total[1] // 2, total[0] // 2, total[0] - total[0] // 2)
    h, w = _pair(padding)
    return (w, w, h, h)


@implements(F.conv2d, (Dense, Format, Dense))
def conv2d(
    input: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """Convolution with a sparse weight: patches of the input, times the weight as a matrix."""
    if (
        groups != 1
        or input.dim() not in (3, 4)
        or input.dtype != weight._values.dtype
        or weight.grad_format is not None
    ):
        return NotImplemented
    out_channels, channels, *kernel = weight._dense_shape
    size, step, gap = (kernel[0], kernel[1]), _pair(stride), _pair(dilation)
    pad = _padding(padding, size, gap, step)
    if pad is None or input.shape[-3] != channels:
        return NotImplemented
    x = F.pad(input if input.dim() == 4 else input[None], pad)
    height, width = ((x.shape[2 + i] - gap[i] * (size[i] - 1) - 1) // step[i] + 1 for i in (0, 1))
    if height < 1 or width < 1:
        return NotImplemented
    patches = F.unfold(x, size, gap, 0, step)  # batch, channels * kernel, places
    flat = patches.transpose(0, 1).reshape(patches.shape[1], -1)
    matrix = reshape(weight, (out_channels, patches.shape[1]))
    out = product(matrix, flat).view(out_channels, -1, height, width).transpose(0, 1)
    out = out.contiguous() if bias is None else out + bias.view(-1, 1, 1)
    return out if input.dim() == 4 else out[0]


@implements(F.conv2d, (Dense, Masked, Dense))
def conv2d_masked(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
    """A masked weight is a dense one whose other values are zero."""
    return F.conv2d(input, values_of(weight) if weight.grad_format is None else weight.to_dense(), *args, **kwargs)


@implements(F.layer_norm, (Format, Format, Format, Format))
def layer_norm(input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise an activation: the mean moves every zero, so the result is dense by nature."""
    input, weight, bias = (t.to_dense() if isinstance(t, SparseTensor) else t for t in (input, weight, bias))
    return F.layer_norm(input, normalized_shape, weight, bias, eps)


@implements(F.rms_norm, (Format, Dense))
def rms_norm(input: SparseTensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Divide by the root of the mean square: zeros stay zeros, so the result is sparse."""
    count = len(normalized_shape)
    if not isinstance(input, SparseTensor) or not 0 < count <= input.dim() or input.numel() == 0:
        return NotImplemented
    if tuple(normalized_shape) != tuple(input._dense_shape[input.dim() - count :]):
        return NotImplemented
    if weight is not None and (weight.dtype != input.dtype or tuple(weight.shape) != tuple(normalized_shape)):
        return NotImplemented
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    mean = torch.square(input).mean(tuple(range(-count, 0)), keepdim=True)
    out = input * torch.rsqrt(mean + eps)
    return out if weight is None else out * weight


@implements(F.normalize, (Format,))
def normalize(input: SparseTensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """Divide by the norm along a dimension: zeros stay zeros, so the result is sparse."""
    if eps <= 0 or not input.dim():
        return NotImplemented
    return input / torch.linalg.vector_norm(input, p, dim, keepdim=True).clamp_min(eps)
