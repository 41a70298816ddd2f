"""The absolute value: simple, and hard to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .base import Score


@dataclass(frozen=True)
class Magnitude(Score):
    """|w|. Half precision is scored in float32.

    Examples
    --------
    >>> import torch
    >>> Magnitude()(torch.tensor([-2.0, 1.0]))
    tensor([2., 1.])
    """

    def rate(self, weight: Tensor, **context: Any) -> Tensor:
        return weight.abs()
