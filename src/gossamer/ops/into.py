"""Results that are written to a tensor, or added to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import Structure


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
        return _added(out, beta, result)
    _added(out._values, beta, _placed(result, out.structure))
    return out


def _placed(result: SparseTensor, structure: Structure) -> Tensor:
    """Return the values of a result in the places of a structure that has all its entries; others are 0."""
    if result.structure.same(structure):
        return result._values
    (keys, source), (own, target) = result.structure.entries(), structure.entries()
    values = result._values.reshape(-1)
    values = values if source is None else values[source]
    own, order = torch.sort(own)
    at = torch.searchsorted(own, keys).clamp(max=max(own.numel() - 1, 0))
    here = own[at] == keys if own.numel() else torch.zeros_like(keys, dtype=torch.bool)
    if bool((values.detach()[~here] != 0).any()):
        raise ValueError("out is sparse, and has other entries than the result: give a format as out, and add the two")
    places = order[at[here]] if own.numel() else at[here]
    places = places if target is None else target[places]
    placed = values.new_zeros(structure.value_shape).reshape(-1).index_put((places,), values[here])
    return placed.view(structure.value_shape)


def _added(out: Tensor, beta: float, result: Tensor) -> Tensor:
    """Multiply a tensor by a number, and add to it: of integers whole numbers, of bools none but 0 and 1."""
    if not beta:
        return out.copy_(result)
    if beta == 1:
        return out.add_(result)
    if out.dtype == torch.bool or not (out.dtype.is_floating_point or out.dtype.is_complex or beta == int(beta)):
        raise ValueError(f"out is of {str(out.dtype)[6:]}, so it can't be multiplied by beta={beta}")
    return out.mul_(beta if out.dtype.is_floating_point or out.dtype.is_complex else int(beta)).add_(result)
