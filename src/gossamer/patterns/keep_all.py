"""Keeps everything: the baseline, and the default sparsifier of an operator's result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from ._text import Form
from .base import STREAMING, Cost, Pattern


@dataclass(frozen=True)
class KeepAll(Pattern):
    """Keeps every value. It doesn't read the scores, so NaN and infinity are allowed.

    Examples
    --------
    >>> import torch
    >>> KeepAll().select(torch.zeros(3))
    tensor([True, True, True])
    >>> str(KeepAll())
    'keep all'
    """

    forms: ClassVar[tuple[Form, ...]] = (Form("keep all", "keep[ -]all", lambda: KeepAll()),)

    def pick(self, scores: Tensor) -> Tensor:
        return torch.ones(scores.shape, dtype=torch.bool, device=scores.device)

    def select(self, scores: Tensor) -> Tensor:
        # An overflowed gradient must pass through untouched (mixed precision counts on it): NaN is no error here.
        if not isinstance(scores, Tensor) or not scores.dtype.is_floating_point:
            return super().select(scores)
        return self.pick(scores)

    @property
    def cost(self) -> Cost:
        return STREAMING

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return self

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        return cls() if bool(mask.all()) else None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        return 0.0

    def __str__(self) -> str:
        return "keep all"
