"""Layers other than linear and convolution: embedding, normalisation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.join import entries_of, values_of
from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Masked
from gossamer.ops.index import select_entries
from gossamer.ops.norms import takes_vector_norm


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
