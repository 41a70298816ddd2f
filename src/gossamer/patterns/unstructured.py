"""Removes the lowest fraction of all values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from ._checks import as_fraction, as_matrix, check_scores, dropped, matrix_shape
from ._rank import keep_top, keep_top_rows
from ._text import PERCENT, Form, from_percent, percent
from .base import BLOCKING, MATERIALIZING, Cost, Pattern


@dataclass(frozen=True)
class Unstructured(Pattern):
    """Removes exactly `round(sparsity * n)` of n values, the lowest. For equal scores, the lower index is kept.

    Parameters
    ----------
    sparsity
        Fraction that is removed, from 0 to 1, read as the decimal it prints as; halves round to even.
    per
        What n counts: the values of a "tensor", of a "row", or of a "model" (all tensors given to
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

    forms: ClassVar[tuple[Form, ...]] = (
        Form("90%", PERCENT, lambda p: Unstructured(from_percent(p))),
        Form("90% per row", PERCENT + " per (row|tensor|model)", lambda p, per: Unstructured(from_percent(p), per)),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", as_fraction("sparsity", self.sparsity))
        if self.per not in ("tensor", "row", "model"):
            raise ValueError(f'per must be "tensor", "row" or "model", got {self.per!r}.')

    def kept(self, n: int) -> int:
        """How many of n are kept.

        Examples
        --------
        >>> Unstructured(0.9).kept(1000)
        100
        """
        return n - dropped(self.sparsity, n)

    def pick(self, scores: Tensor) -> Tensor:
        if self.per == "row":
            matrix = as_matrix(scores)
            return keep_top_rows(matrix, self.kept(matrix.shape[1])).view(scores.shape)
        return keep_top(scores, self.kept(scores.numel()))

    def select_many(self, scores: Sequence[Tensor]) -> list[Tensor]:
        if self.per != "model" or not scores:
            return super().select_many(scores)
        with torch.no_grad():
            ready = [check_scores(one, "Unstructured") for one in scores]
            home = ready[0].device
            joint = torch.cat([one.reshape(-1).to(home) for one in ready])
            parts = self.pick(joint).split_with_sizes([one.numel() for one in ready])
            return [part.view(one.shape).to(one.device) for part, one in zip(parts, ready, strict=True)]

    def select_by_row(self, scores: Tensor) -> Tensor:
        """Every row loses the same number of values, or one more if the total requires it."""
        if self.per != "tensor":
            return self.select(scores)
        matrix = as_matrix(check_scores(scores, "Unstructured"))
        rows, columns = matrix.shape
        counts = [dropped(self.sparsity, row * columns) for row in range(rows + 1)]
        least = min((b - a for a, b in pairwise(counts)), default=0)
        mask = keep_top_rows(matrix, columns - least)
        more = counts[-1] - least * rows  # rows that lose one more: those whose lowest score is the lowest
        if more:
            lowest = matrix.masked_fill(~mask, torch.inf).min(1)
            which = lowest.values.argsort(stable=True)[:more]
            mask[which, lowest.indices[which]] = False
        return mask.view(scores.shape)

    @property
    def joint(self) -> bool:
        return self.per == "model"

    @property
    def cost(self) -> Cost:
        return BLOCKING if self.per == "row" else MATERIALIZING

    def span(self, ndim: int) -> int | None:
        return 1 if self.per == "row" and ndim > 1 else None

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        rows, columns = matrix_shape(shape)
        if self.per == "model" or stop <= start:
            return None
        if self.per == "row" and dim == 0:
            return self
        each = columns if dim == 0 else 1 if self.per == "row" else rows
        gone = dropped(self.sparsity, each * stop) - dropped(self.sparsity, each * start)
        return replace(self, sparsity=gone / (each * (stop - start)))

    def towards(self, share: float) -> Pattern:
        return self if share >= 1 else replace(self, sparsity=round(self.sparsity * max(share, 0.0), 6))

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        return None if bool(mask.any()) else cls(1.0)  # nothing is kept; what is kept in no order has no pattern

    def sparsity_of(self, shape: Sequence[int]) -> float:
        n = matrix_shape(shape)[1] if self.per == "row" else prod(shape)
        return dropped(self.sparsity, n) / n if n else 0.0

    def __str__(self) -> str:
        return percent(self.sparsity) + ("" if self.per == "tensor" else f" per {self.per}")
