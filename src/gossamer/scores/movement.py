"""Movement: keeps values that training pushes away from zero (Sanh et al. 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Score, as_real, like_weight


@dataclass(frozen=True)
class Movement(Score):
    """-w g, summed over steps: positive if gradient descent moves w away from zero, negative if towards it.

    Scores are signed; `Threshold(0.0)` keeps what moved away from zero.

    Notes
    -----
    Context: `grad`, with the weight's shape. Leading dimensions are steps, which are summed; this is exact if the
    weight was the same in all of them. If it changes from step to step, use `accumulate`.

    Examples
    --------
    >>> import torch
    >>> Movement()(torch.tensor([2.0, -1.0]), grad=torch.tensor([-1.0, -0.5]))
    tensor([ 2.0000, -0.5000])
    """

    needs: ClassVar[tuple[str, ...]] = ("grad",)

    def rate(self, weight: Tensor, *, grad: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        grad = like_weight("Movement", "grad", grad, weight, leading=1)
        return (
            -weight * grad.sum(tuple(range(grad.dim() - weight.dim()))) if grad.dim() > weight.dim() else -weight * grad
        )

    @staticmethod
    def accumulate(previous: Tensor | None, weight: Tensor, grad: Tensor) -> Tensor:
        """The movement up to and including this step; `previous` is None at the first.

        Examples
        --------
        >>> import torch
        >>> w, g = torch.tensor([2.0, -1.0]), torch.tensor([-1.0, -0.5])
        >>> Movement.accumulate(Movement.accumulate(None, w, g), w, g)
        tensor([ 4., -1.])
        """
        with torch.no_grad():
            weight = as_real("Movement", "weight", weight)
            step = -weight * like_weight("Movement", "grad", grad, weight)
            return step if previous is None else like_weight("Movement", "previous", previous, weight) + step
