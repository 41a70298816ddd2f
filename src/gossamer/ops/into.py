"""Results that are written into a tensor, or added to what it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gossamer.core.tensor import SparseTensor


def into(out: Tensor, beta: float, compute: Callable[..., Any]) -> Tensor:
    """Write ``beta * out + compute()`` into a tensor; ``compute`` takes the format of its result as ``out``.

    Examples
    --------
    >>> import torch
    >>> into(torch.ones(2), 2.0, lambda out=None: torch.tensor([1.0, 3.0]))
    tensor([3., 5.])
    """
    result = compute(out=out.format) if isinstance(out, SparseTensor) else compute()
    if isinstance(result, SparseTensor) and not isinstance(out, SparseTensor):
        result = result.to_dense()
    if result.shape != out.shape or result.dtype != out.dtype:
        given = f"{tuple(out.shape)} of {str(out.dtype)[6:]}"
        raise ValueError(f"out is {given}, but the result is {tuple(result.shape)} of {str(result.dtype)[6:]}")
    if not isinstance(out, SparseTensor):
        return out.mul_(beta).add_(result) if beta else out.copy_(result)
    if not result.structure.same(out.structure):
        raise ValueError("out is sparse, and has other entries than the result: give a format as out, and add the two")
    values: Tensor = out._values
    if beta:
        values.mul_(beta).add_(result._values)
    else:
        values.copy_(result._values)
    return out
