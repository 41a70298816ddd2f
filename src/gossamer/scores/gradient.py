"""First-order saliency: how much the loss changes if a value is set to zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Score, like_weight


@dataclass(frozen=True, repr=False)
class Gradient(Score):
    """|w g|: the size of the first-order change of the loss when w becomes 0 (SNIP's saliency).

    Parameters
    ----------
    even
        From 0 to 1: divide by the root mean squares of the row and of the column to this power (up to a factor that all
        share). True is 1. With 0, rows and columns with large gradients, of which transformers have a few in each
        layer, take most of what is kept or grown; with 1 all rows and columns count the same.

    Notes
    -----
    Context: `grad`, the gradient of the loss, of the weight's shape.

    Examples
    --------
    >>> import torch
    >>> Gradient()(torch.tensor([2.0, 1.0]), grad=torch.tensor([-1.0, 0.5]))
    tensor([2.0000, 0.5000])
    >>> grad = torch.tensor([[1.0, 2.0], [10.0, 20.0]])  # the second row is ten times the first
    >>> Gradient(even=True)(torch.ones(2, 2), grad=grad)
    tensor([[1.7800, 1.7800],
            [1.7800, 1.7800]])
    """

    even: float = 0.0
    needs: ClassVar[tuple[str, ...]] = ("grad",)

    def rate(self, weight: Tensor, *, grad: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        change = (weight * like_weight("Gradient", "grad", grad, weight)).abs()
        return _evened(change, self.even) if self.even else change

    def __post_init__(self) -> None:
        if not isinstance(self.even, (int, float)) or not 0 <= self.even <= 1:
            raise ValueError(f"Gradient: even={self.even!r} must be a number from 0 to 1, or a bool")

    def __repr__(self) -> str:
        return f"Gradient(even={self.even!r})" if self.even else "Gradient()"


def _evened(scores: Tensor, power: float) -> Tensor:
    """Scores over the root mean squares of rows and of columns to a power, and times the largest; zeros stay zeros."""
    if not scores.numel():
        return scores
    matrix = scores.flatten(1) if scores.dim() > 1 else scores.unsqueeze(0)
    largest = matrix.amax().clamp(min=torch.finfo(matrix.dtype).tiny)  # squares neither overflow nor vanish
    squares = (matrix / largest).square()
    rows, columns = squares.mean(1, keepdim=True).sqrt(), squares.mean(0, keepdim=True).sqrt()
    return torch.where(matrix > 0, matrix / largest / (rows * columns) ** power, matrix).view(scores.shape)
