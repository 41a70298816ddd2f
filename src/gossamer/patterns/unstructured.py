"""The lowest fraction goes, wherever it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor

from ._checks import as_fraction, dropped, percent
from ._rank import keep_top, keep_top_rows
from .base import BLOCKING, MATERIALIZING, Cost, Pattern, as_matrix, check_scores, matrix_shape


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Drops exactly `round(sparsity * n)` of n values, the lowest. Among equals the lower index stays.

    Parameters
    ----------
    sparsity
        Fraction that goes, from 0 to 1, read as the decimal it prints as; halves round to even.
    per
        What n counts: the values of a "tensor", of a "row", or of a whole "model" (all tensors given to
        `select_many`, ranked together; a single tensor is a model of one).

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    >>> Unstructured(0.5).select(scores).int().tolist()
    [[0, 0, 0, 0], [1, 1, 1, 1]]
    >>> Unstructured(0.5, per="row").select(scores).int().tolist()
    [[0, 0, 1, 1], [0, 0, 1, 1]]
    """

    sparsity: float
    per: Literal["tensor", "row", "model"] = "tensor"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", as_fraction("sparsity", self.sparsity))
        if self.per not in ("tensor", "row", "model"):
            raise ValueError(f'per must be "tensor", "row" or "model", got {self.per!r}.')

    def _kept(self, n: int) -> int:
        return n - dropped(self.sparsity, n)

    def pick(self, scores: Tensor) -> Tensor:
        if self.per == "row":
            matrix = as_matrix(scores)
            return keep_top_rows(matrix, self._kept(matrix.shape[1])).view(scores.shape)
        return keep_top(scores, self._kept(scores.numel()))

    def select_many(self, scores: Sequence[Tensor]) -> list[Tensor]:
        if self.per != "model" or not scores:
            return super().select_many(scores)
        with torch.no_grad():
            ready = [check_scores(one, "Unstructured") for one in scores]
            home = ready[0].device
            joint = torch.cat([one.reshape(-1).to(home) for one in ready])
            parts = self.pick(joint).split_with_sizes([one.numel() for one in ready])
            return [part.view(one.shape).to(one.device) for part, one in zip(parts, ready, strict=True)]

    @property
    def cost(self) -> Cost:
        return BLOCKING if self.per == "row" else MATERIALIZING

    def span(self, ndim: int) -> int | None:
        return 1 if self.per == "row" and ndim > 1 else None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        n = matrix_shape(shape)[1] if self.per == "row" else prod(shape)
        return dropped(self.sparsity, n) / n if n else 0.0

    def __str__(self) -> str:
        return percent(self.sparsity) + ("" if self.per == "tensor" else f" per {self.per}")
