"""Blocks of rows share some of every m columns, and each row keeps n of those: the stages towards V:N:M."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count, as_matrix, check_n_of_m, matrix_shape
from ._columns import best_columns
from ._rank import keep_top_rows, tame
from ._text import INT, Form
from .base import BLOCKING, MATERIALIZING, Choice, Cost, Pattern
from .nm import NM, aligned, kept_on_the_way
from .unstructured import Unstructured


@dataclass(frozen=True)
class SharedNM(Pattern):
    """Each block of v rows shares `shared` of every m columns, and each of its rows keeps n of those.

    `SharedNM(v, 4, 2, m)` is the same as `VNM(v, 2, m)`; others are stages towards it. If the rows are not a multiple
    of v, the last block has fewer. If the columns are not a multiple of m, the last group has r < m columns:
    min(shared, r) are shared and each row keeps min(n, r).

    Parameters
    ----------
    v
        Rows of a block, at least 1, or "all": one block of all rows.
    shared, n, m
        n <= shared <= m.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[9.0, 1.0, 8.0, 7.0], [1.0, 1.0, 6.0, 9.0]])
    >>> SharedNM(2, 3, 2, 4).select(scores).int().tolist()
    [[1, 0, 1, 0], [0, 0, 1, 1]]
    >>> str(SharedNM(64, 5, 4, 8))
    '64:4:8 of 5'
    """

    v: int | Literal["all"]
    shared: int
    n: int
    m: int

    schedule: ClassVar[str] = "decay"
    forms: ClassVar[tuple[Form, ...]] = (
        Form(
            "64:4:8 of 5",
            rf"(\d+|all):{INT}:{INT} of {INT}",
            lambda v, n, m, c: SharedNM(v if v == "all" else int(v), int(c), int(n), int(m)),
        ),
    )

    def __post_init__(self) -> None:
        check_rows(self.v)
        for name in ("shared", "n", "m"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        check_n_of_m("SharedNM", self.n, self.shared)
        check_n_of_m("SharedNM", self.shared, self.m)

    @property
    def shares_columns(self) -> bool:
        return self.v == "all" and self.shared < self.m

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        height = self.rows_of(rows)
        if height <= 1 or self.m == self.shared:
            return NM(self.n, self.m).pick(scores)  # a row alone shares its columns with nobody
        full = columns - columns % self.m
        mask = torch.zeros(matrix.shape, dtype=torch.bool, device=scores.device)
        for part, width in ((slice(full), self.m), (slice(full, None), columns - full)):
            if width and matrix[:, part].numel():
                mask[:, part] = self._select(matrix[:, part], height, width)
        return mask.view(scores.shape)

    def _select(self, scores: Tensor, height: int, m: int) -> Tensor:
        """Mask of a matrix whose columns are a multiple of m, by blocks of `height` rows."""
        rows, columns = scores.shape
        tall, groups = -(-rows // height), columns // m
        # Rows of zeros at the bottom add the same to every choice.
        tiles = pad(tame(scores), (0, 0, 0, tall * height - rows)).view(tall, height, groups, m)
        chosen = best_columns(tiles.permute(3, 1, 0, 2).reshape(m, height, tall * groups), self.n, self.shared)
        shared = chosen.t().reshape(tall, groups, -1).repeat_interleave(height, 0)[:rows]
        lines = scores.reshape(rows, groups, m)
        kept = keep_top_rows(lines.gather(2, shared).flatten(0, 1), self.n).view(shared.shape)
        mask = torch.zeros(lines.shape, dtype=torch.bool, device=scores.device)
        return mask.scatter_(2, shared, kept).view(rows, columns)

    def rows_of(self, rows: int) -> int:
        """Rows of a block in a matrix of `rows` rows.

        Examples
        --------
        >>> SharedNM("all", 4, 2, 8).rows_of(100), SharedNM(64, 4, 2, 8).rows_of(100)
        (100, 64)
        """
        return rows if self.v == "all" else min(self.v, rows)

    @property
    def cost(self) -> Cost:
        return MATERIALIZING if self.v == "all" else BLOCKING

    def span(self, ndim: int) -> int | None:
        if self.v == "all":
            return None
        return self.v if ndim > 1 else self.m

    @property
    def period(self) -> int:
        return self.m

    def choice(self, rows: int) -> Choice:
        v = self.rows_of(rows)
        alone = v <= 1 or self.m == self.shared
        return Choice(self.n, self.m) if alone else Choice(self.n, self.m, v, self.shared)

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        sides = matrix_shape(shape)
        return self if aligned(start, stop, (self.rows_of(sides[0]), self.m)[dim], sides[dim]) else None

    def towards(self, share: float) -> Pattern:
        """Keeps more of every m, with more shared columns, so that there is a choice."""
        if share >= 1:
            return self
        kept = kept_on_the_way(self.n, self.m, share)
        if kept == self.m:
            return Unstructured(0.0)
        shared = min(self.m, max(self.shared, round(self.m - share * (self.m - self.shared)), kept + 1))
        return NM(kept, self.m) if self.v == 1 else SharedNM(self.v, shared, kept, self.m)

    def sparsity_of(self, shape: Sequence[int]) -> float:
        return NM(self.n, self.m).sparsity_of(shape) if prod(shape) else 0.0

    def __str__(self) -> str:
        return f"{self.v}:{self.n}:{self.m} of {self.shared}"


def check_rows(v: object) -> None:
    """Raise if `v` isn't a number of rows."""
    if isinstance(v, str):
        if v != "all":
            raise ValueError(f'v must be an integer >= 1 or "all", got {v!r}.')
    else:
        as_count("v", v)
