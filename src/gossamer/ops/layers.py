"""Layers other than linear: embedding, convolution, normalisation."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, entries_of, values_of, wants_dense_gradient
from gossamer.formats import Dense, Format, Masked
from gossamer.ops import product as products
from gossamer.ops.index import select_entries
from gossamer.ops.norms import takes_vector_norm
from gossamer.ops.product import multiply


def _takes_embedding(
    input: Tensor,
    weight: SparseTensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> str | None:
    if max_norm is not None:
        return "max_norm changes the table"
    if scale_grad_by_freq:
        return "scale_grad_by_freq is not supported"
    if len(weight._dense_shape) != 2:
        return "the table is not a matrix"
    return None if input.dtype in (torch.int64, torch.int32) else "the indices are not int64 or int32"


@implements(F.embedding, (Dense, Format), when=_takes_embedding)
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


class _Window(NamedTuple):
    """The sizes of a convolution."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]  # left, right, top, bottom, as F.pad wants it
    places: tuple[int, int]  # height and width of the result


def _window(input: Tensor, weight: SparseTensor, stride: Any, padding: Any, dilation: Any) -> _Window | str:
    """Return the sizes of a convolution, or why there are none."""
    kernel, stride, dilation = tuple(weight._dense_shape[2:]), _pair(stride), _pair(dilation)
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
    return _Window(kernel, stride, dilation, pad, (height, width))  # type: ignore[arg-type]


def _takes_conv2d(
    input: Tensor, weight: SparseTensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> str | None:  # fmt: skip
    shape = weight._dense_shape
    if groups != 1:
        return "groups is not 1"
    if len(shape) != 4 or input.dim() not in (3, 4):
        return "input or weight has another number of dimensions"
    if input.dtype is not weight._values.dtype or (bias is not None and bias.dtype is not input.dtype):
        return "input, weight and bias have different types"
    if input.shape[-3] != shape[1]:
        return "input and weight have different numbers of channels"
    if torch.compiler.is_compiling() and wants_dense_gradient(weight):
        return "in a trace, the gradient of the weight is wanted at every position"
    window = _window(input, weight, stride, padding, dilation)
    return window if isinstance(window, str) else None


def _describe_conv2d(input: Tensor, weight: SparseTensor, *args: Any, **kwargs: Any) -> str:
    return f"patches of the input are the tokens, {products.describe(weight)}"


@implements(F.conv2d, (Dense, Format, Dense), when=_takes_conv2d, detail=_describe_conv2d)
def conv2d(
    input: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution with a sparse weight: patches of the input are the tokens."""
    window = _window(input, weight, stride, padding, dilation)
    assert isinstance(window, _Window)
    x = input if input.dim() == 4 else input[None]
    x = F.pad(x, window.padding) if any(window.padding) else x
    pointwise = window.kernel == window.stride == (1, 1)
    patches = x.flatten(2) if pointwise else F.unfold(x, window.kernel, window.dilation, 0, window.stride)
    batch, features, count = patches.shape  # of each image, features at every place of the result
    rows = weight._dense_shape[0]
    if products.chosen(*products.case_of(weight._values, weight.structure)).feature_major:
        tokens = patches.transpose(0, 1).reshape(features, -1).t()
        out = multiply(tokens, weight, bias, feature_major=True).t().reshape(rows, batch, count).transpose(0, 1)
    else:
        tokens = patches.transpose(1, 2).reshape(-1, features)
        out = multiply(tokens, weight, bias).view(batch, count, rows).transpose(1, 2)
    out = out.reshape(batch, rows, *window.places)
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


def _takes_rms_norm(input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> str | None:
    shape, wanted = shape_of(input), tuple(normalized_shape)
    if not isinstance(input, SparseTensor):
        return "the input is dense"
    if not wanted or shape.numel() == 0 or tuple(shape[-len(wanted) :]) != wanted:
        return "normalized_shape is not the end of the shape, or nothing is there"
    if weight is not None and (dtype_of(weight) != dtype_of(input) or tuple(shape_of(weight)) != wanted):
        return "the weight has another type or shape"
    return None


@implements(F.rms_norm, (Format, Dense), when=_takes_rms_norm)
def rms_norm(input: SparseTensor, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Divide by the root of the mean square: zeros stay zeros, so the result is sparse."""
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    mean = torch.square(input).mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
    out = input * torch.rsqrt(mean + eps)
    return out if weight is None else out * weight


def _takes_normalize(input: SparseTensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> str | None:
    if eps <= 0:
        return "eps is not positive, so 0 / 0 may come up"
    if not input._dense_shape:
        return "the input has no dimension"
    return takes_vector_norm(input, p, dim, True)


@implements(F.normalize, (Format,), when=_takes_normalize)
def normalize(input: SparseTensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """Divide by the norm along a dimension: zeros stay zeros, so the result is sparse."""
    return input / torch.linalg.vector_norm(input, p, dim, keepdim=True).clamp_min(eps)
