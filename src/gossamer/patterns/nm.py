"""n of each m neighbours in a row stay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from ._checks import as_count, check_n_of_m
from ._rank import keep_top_rows
from .base import BLOCKING, Cost, Pattern, as_matrix, matrix_shape


@dataclass(frozen=True)
class NM(Pattern):
    """Of each m consecutive values of a row the n highest stay. Among equals the lower column stays.

    Where the columns are no multiple of m, the last group is shorter: r < m columns keep min(n, r).

    Parameters
    ----------
    n, m
        1 <= n <= m. `NM(2, 4)` is what sparse tensor cores take.

    Examples
    --------
    >>> import torch
    >>> NM(2, 4).select(torch.tensor([[1.0, 9.0, 8.0, 2.0, 5.0, 5.0, 5.0, 5.0]])).int()
    tensor([[0, 1, 1, 0, 1, 1, 0, 0]], dtype=torch.int32)
    """

    n: int
    m: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", as_count("n", self.n))
        object.__setattr__(self, "m", as_count("m", self.m))
        check_n_of_m("NM", self.n, self.m)

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        whole = columns - columns % self.m
        mask = torch.empty(matrix.shape, dtype=torch.bool, device=scores.device)
        mask[:, :whole] = keep_top_rows(matrix[:, :whole].reshape(-1, self.m), self.n).view(rows, whole)
        mask[:, whole:] = keep_top_rows(matrix[:, whole:], self.n)
        return mask.view(scores.shape)

    @property
    def cost(self) -> Cost:
        return BLOCKING

    def span(self, ndim: int) -> int:
        return 1 if ndim > 1 else self.m

    def sparsity_of(self, shape: Sequence[int]) -> float:
        columns = matrix_shape(shape)[1]
        if not prod(shape):
            return 0.0
        return 1 - (columns // self.m * self.n + min(self.n, columns % self.m)) / columns

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"
