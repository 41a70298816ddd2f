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
        Divide by the root mean squares of the row and of the column (up to a factor that all share). Otherwise rows and
        columns with large gradients, of which transformers have a few in each layer, take most of what is kept or
        grown.

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

    even: bool = False
    needs: ClassVar[tuple[str, ...]] = ("grad",)

    def rate(self, weight: Tensor, *, grad: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        change = (weight * like_weight("Gradient", "grad", grad, weight)).abs()
        return _evened(change) if self.even else change

    def __repr__(self) -> str:
        return "Gradient(even=True)" if self.even else "Gradient()"


def _evened(scores: Tensor) -> Tensor:
    """Scores divided by the root mean squares of rows and of columns, and times the largest; zeros stay zeros."""
    if not scores.numel():
        return scores
    matrix = scores.flatten(1) if scores.dim() > 1 else scores.unsqueeze(0)
    largest = matrix.amax().clamp(min=torch.finfo(matrix.dtype).tiny)  # squares neither overflow nor vanish
    squares = (matrix / largest).square()
    rows, columns = squares.mean(1, keepdim=True).sqrt(), squares.mean(0, keepdim=True).sqrt()
    return torch.where(matrix > 0, matrix / largest / (rows * columns), matrix).view(scores.shape)
