"""Copies of a sparse tensor: unchanged, detached, with another type or on another device."""

from __future__ import annotations

from typing import Any

import torch

from gossamer.core.join import build, values_of
from gossamer.core.tensor import SparseTensor


def with_options_of(out: SparseTensor, source: SparseTensor) -> SparseTensor:
    """Return a tensor with the options of another: its gradient's format, and whether it is the weight of a module."""
    out.grad_format, out._is_weight = source.grad_format, source._is_weight
    return out


def cloned(input: SparseTensor) -> SparseTensor:
    """Return a copy of the values, differentiably; the index arrays never change, so they are shared."""
    return with_options_of(build(values_of(input).clone(), input.structure), input)


def detached(input: SparseTensor) -> SparseTensor:
    """Return the same tensor outside autograd, sharing everything."""
    out = with_options_of(SparseTensor(input._values.detach(), input.structure), input)
    out._owner = input._owner
    return out


def moved(input: SparseTensor, dtype: torch.dtype | None = None, device: Any = None, **kwargs: Any) -> SparseTensor:
    """Change type or device, as aten calls it."""
    values = input._values.to(dtype=dtype or input._values.dtype, device=device or input._values.device, copy=True)
    structure = input.structure.to(values.device)
    return with_options_of(SparseTensor(values, structure), input)
