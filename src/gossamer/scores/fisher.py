"""Second order: what removing a weight costs, by the inverse of the empirical Fisher matrix in small blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Score, like_weight
from .block_fisher import BlockFisher

_VALUES_AT_A_TIME = 1 << 22  # of inverse matrices in float64: 32 MiB


@dataclass(frozen=True)
class Fisher(Score):
    """w^2 / (2 [F^-1]_ii): how much the loss rises if w is removed and the rest of its block compensates (OBS).

    F = damp I + mean of g g^T over batches, in blocks of consecutive weights of a row, by `BlockFisher`.

    Parameters
    ----------
    block
        How many weights of a row form a block. Choose a multiple of m for n:m patterns.
    damp
        Added to the diagonal, > 0.

    Notes
    -----
    Context: `grads`, [batches, *weight.shape], one gradient per batch; or a `BlockFisher` that has collected them.

    Examples
    --------
    >>> import torch
    >>> grads = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])
    >>> Fisher(block=2, damp=0.5)(torch.tensor([[1.0, 1.0]]), grads=grads)  # F = diag(2.5, 1)
    tensor([[1.2500, 0.5000]])
    """

    block: int = 16
    damp: float = 1e-7

    needs: ClassVar[tuple[str, ...]] = ("grads",)

    def __post_init__(self) -> None:
        if isinstance(self.block, bool) or not isinstance(self.block, Integral):
            raise TypeError(
                f"Fisher: block must be an integer >= 1, got {self.block!r} of type {type(self.block).__name__}."
            )
        if self.block < 1:
            raise ValueError(f"Fisher: block must be at least 1, got {self.block}.")
        if not (self.damp > 0 and math.isfinite(self.damp)):
            raise ValueError(f"Fisher: damp must be a finite number > 0, got {self.damp!r}.")

    def collector(self, rows: int, columns: int, count: int, device: torch.device | str = "cpu") -> BlockFisher:
        """The inverse, updated with each gradient: O(weights x block) memory for any number of gradients."""
        return BlockFisher(rows, columns, count=count, block=self.block, damp=self.damp, relative=False, device=device)

    def rate(self, weight: Tensor, *, grads: Tensor | BlockFisher, **context: Any) -> Tensor:  # type: ignore[override]
        rows = weight.shape[0] if weight.dim() > 1 else 1
        columns = prod(weight.shape[1:] if weight.dim() > 1 else weight.shape)
        diagonal = grads.diagonal() if isinstance(grads, BlockFisher) else self._diagonal(weight, grads, rows, columns)
        return (weight.double().square() / (2 * diagonal.to(weight.device).view(weight.shape))).to(weight.dtype)

    def _diagonal(self, weight: Tensor, grads: Tensor, rows: int, columns: int) -> Tensor:
        """The diagonal of F^-1 from a stack of gradients, some rows at a time."""
        grads = like_weight("Fisher", "grads", grads, weight, leading=1)
        if grads.dim() != weight.dim() + 1 or len(grads) == 0:
            raise ValueError(
                f"Fisher: grads must be [batches, *weight.shape] with at least one batch for a weight of shape "
                f"{tuple(weight.shape)}, got {tuple(grads.shape)}. Stack one gradient per batch."
            )
        parts = []
        for part in grads.reshape(len(grads), rows, columns).split(
            max(1, _VALUES_AT_A_TIME // max(1, columns * self.block)), 1
        ):
            fisher = self.collector(part.shape[1], columns, len(grads), grads.device)
            for grad in part:
                fisher.add(grad)
            parts.append(fisher.diagonal())
        return torch.cat(parts)
