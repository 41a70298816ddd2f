"""V:N:M (VENOM): blocks of v rows share 4 of each m columns, and each row keeps 2 of these 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count
from ._columns import best_columns
from ._rank import keep_top_rows, tame
from .base import BLOCKING, MATERIALIZING, Cost, Pattern, as_matrix
from .nm import NM


@dataclass(frozen=True)
class VNM(Pattern):
    """Each block of v rows keeps 4 of each m columns, and each of its rows 2 of those 4, as sparse tensor cores need.

    The 4 columns are those that let the rows keep the largest sum of scores: the best of all for m <= 16 (sums in the
    precision of the scores), and a choice that no exchange of one column improves above it. Among equals lower
    columns stay.

    Rows that are no multiple of v: the last block has fewer. Columns that are no multiple of m: the last group has r
    < m columns, of which min(4, r) are shared and each row keeps min(2, r).

    Parameters
    ----------
    v
        Rows of a block, at least 1, or "all": one block of all rows.
    n
        2, as the hardware has it.
    m
        At least 4. `VNM(v, 2, 4)` is `NM(2, 4)` for every v.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[9.0, 1.0, 8.0, 1.0, 1.0, 7.0], [1.0, 1.0, 6.0, 9.0, 1.0, 7.0]])
    >>> VNM(2, 2, 6).select(scores).int().tolist()
    [[1, 0, 1, 0, 0, 0], [0, 0, 0, 1, 0, 1]]
    >>> str(VNM("all", 2, 8))
    'all:2:8'
    """

    v: int | Literal["all"]
    n: int
    m: int

    def __post_init__(self) -> None:
        if isinstance(self.v, str):
            if self.v != "all":
                raise ValueError(f'v must be an integer >= 1 or "all", got {self.v!r}.')
        else:
            object.__setattr__(self, "v", as_count("v", self.v))
        object.__setattr__(self, "n", as_count("n", self.n))
        object.__setattr__(self, "m", as_count("m", self.m))
        if self.n != 2:
            raise ValueError(
                f"VNM keeps n = 2 of 4 shared columns, as sparse tensor cores do; got n={self.n}. Use NM(n, m)."
            )
        if self.m < 4:
            raise ValueError(f"VNM shares 4 of each m columns, so m must be at least 4; got m={self.m}.")

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        height = rows if self.v == "all" else min(self.v, rows)
        if height <= 1 or self.m == 4:
            return NM(2, self.m).pick(scores)  # a row alone shares its columns with nobody
        whole = columns - columns % self.m
        mask = torch.zeros(matrix.shape, dtype=torch.bool, device=scores.device)
        for part, width in ((slice(whole), self.m), (slice(whole, None), columns - whole)):
            if width and matrix[:, part].numel():
                mask[:, part] = _select(matrix[:, part], height, width)
        return mask.view(scores.shape)

    @property
    def cost(self) -> Cost:
        return MATERIALIZING if self.v == "all" else BLOCKING

    def span(self, ndim: int) -> int | None:
        if ndim < 2:
            return None if self.v == "all" else self.m
        return None if self.v == "all" else self.v

    def sparsity_of(self, shape: Sequence[int]) -> float:
        return NM(2, self.m).sparsity_of(shape) if prod(shape) else 0.0

    def __str__(self) -> str:
        return f"{self.v}:{self.n}:{self.m}"


def _select(scores: Tensor, height: int, m: int) -> Tensor:
    """Mask of a matrix whose columns are a multiple of m, by blocks of `height` rows."""
    rows, columns = scores.shape
    tall, groups = -(-rows // height), columns // m
    # Rows of zeros at the bottom add the same to every choice.
    tiles = pad(tame(scores), (0, 0, 0, tall * height - rows)).view(tall, height, groups, m)
    chosen = best_columns(tiles.permute(3, 1, 0, 2).reshape(m, height, tall * groups))
    shared = chosen.t().reshape(tall, groups, -1).repeat_interleave(height, 0)[:rows]
    lines = scores.reshape(rows, groups, m)
    kept = keep_top_rows(lines.gather(2, shared).flatten(0, 1), 2).view(shared.shape)
    mask = torch.zeros(lines.shape, dtype=torch.bool, device=scores.device)
    return mask.scatter_(2, shared, kept).view(rows, columns)
