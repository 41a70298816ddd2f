"""Every output keeps the same number of inputs (SRigL's constant fan-in)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from ._checks import as_count, as_fraction, as_matrix, dropped, matrix_shape
from ._rank import keep_top_rows
from ._text import INT, PERCENT, Form, from_percent, percent
from .base import BLOCKING, Cost, Pattern


@dataclass(frozen=True)
class FanIn(Pattern):
    """Each row keeps the same number of values, its highest. For equal scores, the lower column is kept.

    Parameters
    ----------
    sparsity
        Fraction of each row that is removed: it keeps `columns - round(sparsity * columns)`.
    k
        How many values each row keeps. Pass either `sparsity` or `k`.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[1.0, 2.0, 3.0, 4.0], [8.0, 7.0, 6.0, 5.0]])
    >>> FanIn(k=1).select(scores).int().tolist()
    [[0, 0, 0, 1], [1, 0, 0, 0]]
    >>> str(FanIn(0.9)), str(FanIn(k=8))
    ('fan-in 90%', 'fan-in k=8')
    """

    sparsity: float | None = None
    k: int | None = None

    forms: ClassVar[tuple[Form, ...]] = (
        Form("fan-in 90%", f"fan-in {PERCENT}", lambda p: FanIn(from_percent(p))),
        Form("fan-in k=32", f"fan-in (?:k ?= ?)?{INT}", lambda k: FanIn(k=int(k))),
    )

    def __post_init__(self) -> None:
        if (self.sparsity is None) == (self.k is None):
            raise ValueError(
                "FanIn needs one of sparsity and k, got "
                f"sparsity={self.sparsity!r} and k={self.k!r}. Write FanIn(0.9) or FanIn(k=32)."
            )
        if self.sparsity is not None:
            object.__setattr__(self, "sparsity", as_fraction("sparsity", self.sparsity))
        if self.k is not None:
            object.__setattr__(self, "k", as_count("k", self.k, at_least=0))

    def kept(self, columns: int) -> int:
        """How many values a row of `columns` keeps.

        Examples
        --------
        >>> FanIn(0.9).kept(768)
        77
        """
        if self.sparsity is not None:
            return columns - dropped(self.sparsity, columns)
        assert self.k is not None
        if self.k > columns:
            raise ValueError(f"FanIn(k={self.k}) keeps more values than a row has: rows have {columns} columns.")
        return self.k

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        return keep_top_rows(matrix, self.kept(matrix.shape[1])).view(scores.shape)

    @property
    def cost(self) -> Cost:
        return BLOCKING

    def span(self, ndim: int) -> int | None:
        return 1 if ndim > 1 else None

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        if dim == 0:
            return self
        columns = matrix_shape(shape)[1]
        kept = self.kept(columns)
        return FanIn(k=round(kept * stop / columns) - round(kept * start / columns))

    def towards(self, share: float) -> Pattern:
        """A larger fan-in. For a fan-in given as `k` the dense one isn't known, so there are no stages."""
        if share >= 1 or self.sparsity is None:
            return self
        return FanIn(round(self.sparsity * max(share, 0.0), 6))

    @property
    def formats(self) -> tuple[str, ...]:
        return ("Condensed()",)

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """The same number in every row. Empty rows (ablated neurons) don't count."""
        counts = mask.sum(1)
        active = counts[counts > 0]
        constant = len(mask) > 1 and len(active) > 0 and bool((active == active[0]).all())
        return cls(k=int(active[0])) if constant else None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        columns = matrix_shape(shape)[1]
        return 1 - self.kept(columns) / columns if columns else 0.0

    def __str__(self) -> str:
        return f"fan-in k={self.k}" if self.sparsity is None else f"fan-in {percent(self.sparsity)}"
