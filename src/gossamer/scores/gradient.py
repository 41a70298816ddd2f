"""First-order saliency: how much the loss changes if a value is set to zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from .base import Score, like_weight


@dataclass(frozen=True)
class Gradient(Score):
    """|w g|: the size of the first-order change of the loss when w becomes 0 (SNIP's saliency).

    Notes
    -----
    Context: `grad`, the gradient of the loss, of the weight's shape.

    Examples
    --------
    >>> import torch
    >>> Gradient()(torch.tensor([2.0, 1.0]), grad=torch.tensor([-1.0, 0.5]))
    tensor([2.0000, 0.5000])
    """

    needs: ClassVar[tuple[str, ...]] = ("grad",)

    def rate(self, weight: Tensor, *, grad: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        return (weight * like_weight("Gradient", "grad", grad, weight)).abs()
