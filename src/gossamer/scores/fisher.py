"""Second order: what removing a weight costs, by the inverse of the empirical Fisher matrix in small blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from .base import Score, as_real, like_weight

_VALUES_AT_A_TIME = 1 << 22  # of inverse matrices in float64: 32 MiB


@dataclass(frozen=True)
class Fisher(Score):
    """w^2 / (2 [F^-1]_ii): what removing w adds to the loss when the rest of its block makes up for it (OBS).

    F = damp I + mean of g g^T over batches, in blocks of consecutive weights of a row. The inverse is built by one
    rank-one update a batch (Sherman-Morrison), in float64, for all blocks of a slice of rows at once: O(weights *
    block) of memory at most.

    Parameters
    ----------
    block
        Weights of a row that are seen together. Choose a multiple of m for n:m patterns.
    damp
        Added to the diagonal, > 0.

    Notes
    -----
    Context: `grads`, [batches, *weight.shape], one gradient a batch.

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

    def rate(self, weight: Tensor, *, grads: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        grads = like_weight("Fisher", "grads", grads, weight, leading=1)
        if grads.dim() != weight.dim() + 1 or len(grads) == 0:
            raise ValueError(
                f"Fisher: grads must be [batches, *weight.shape] with at least one batch for a weight of shape "
                f"{tuple(weight.shape)}, got {tuple(grads.shape)}. Stack one gradient a batch."
            )
        rows = weight.shape[0] if weight.dim() > 1 else 1
        columns = prod(weight.shape[1:] if weight.dim() > 1 else weight.shape)
        flat, diagonal = grads.reshape(len(grads), rows, columns), torch.empty(rows, columns, dtype=torch.float64)
        diagonal = diagonal.to(weight.device)
        step = max(1, _VALUES_AT_A_TIME // max(1, columns * self.block))
        for start in range(0, rows, step):
            inverse = self.inverse(flat[:, start : start + step])
            diagonal[start : start + step] = inverse.diagonal(dim1=2, dim2=3).flatten(1)[:, :columns]
        return (weight.double().square() / (2 * diagonal.view(weight.shape))).to(weight.dtype)

    def inverse(self, grads: Tensor) -> Tensor:
        """F^-1 of every block, float64 [rows, blocks, block, block], from grads [batches, rows, columns].

        Where the block doesn't divide the columns, the last one is as if filled up with weights that have no gradient.

        Examples
        --------
        >>> import torch
        >>> Fisher(block=2, damp=1.0).inverse(torch.ones(1, 1, 2))
        tensor([[[[ 0.6667, -0.3333],
                  [-0.3333,  0.6667]]]], dtype=torch.float64)
        """
        grads = as_real("Fisher", "grads", grads)
        if grads.dim() != 3:
            raise ValueError(f"Fisher.inverse takes grads [batches, rows, columns], got shape {tuple(grads.shape)}.")
        batches, rows, columns = grads.shape
        blocks = -(-columns // self.block)
        eye = torch.eye(self.block, dtype=torch.float64, device=grads.device) / self.damp
        inverse = eye.repeat(rows * blocks, 1, 1)
        for grad in grads:
            g = pad(grad.double(), (0, -columns % self.block)).view(rows * blocks, self.block, 1)
            v = inverse @ g
            inverse.baddbmm_(v / (batches + g.transpose(1, 2) @ v), v.transpose(1, 2), alpha=-1)
        return inverse.view(rows, blocks, self.block, self.block)
