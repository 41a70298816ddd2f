"""Keeps n of every m neighbours in a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count, as_matrix, check_n_of_m, matrix_shape
from ._rank import keep_top_rows
from ._text import INT, Form
from .base import BLOCKING, WASTE, Choice, Cost, Pattern
from .unstructured import Unstructured

_USUAL = (4, 8, 16, 32, 10, 20, 5, 6, 12, 3, 2)  # m that are recognised for every n, the usual ones first
_FEW = 16  # rows
_WIDEST = 256  # and up to this m for n = 2, the n of sparse tensor cores


@dataclass(frozen=True)
class NM(Pattern):
    """Keeps the n highest of every m consecutive values in a row. For equal scores, the lower column is kept.

    If the columns are not a multiple of m, the last group is shorter: of r < m columns, min(n, r) are kept.

    Parameters
    ----------
    n, m
        1 <= n <= m. Sparse tensor cores need `NM(2, 4)`.

    Examples
    --------
    >>> import torch
    >>> NM(2, 4).select(torch.tensor([[1.0, 9.0, 8.0, 2.0, 5.0, 5.0, 5.0, 5.0]])).int()
    tensor([[0, 1, 1, 0, 1, 1, 0, 0]], dtype=torch.int32)
    """

    n: int
    m: int

    schedule: ClassVar[str] = "decay"
    forms: ClassVar[tuple[Form, ...]] = (Form("2:4", f"{INT}:{INT}", lambda n, m: NM(int(n), int(m))),)

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", as_count("n", self.n))
        object.__setattr__(self, "m", as_count("m", self.m))
        check_n_of_m("NM", self.n, self.m)

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        full = columns - columns % self.m
        if full == columns:
            return keep_top_rows(matrix.reshape(-1, self.m), self.n).view(scores.shape)
        mask = torch.empty(matrix.shape, dtype=torch.bool, device=scores.device)
        mask[:, :full] = keep_top_rows(matrix[:, :full].reshape(-1, self.m), self.n).view(rows, full)
        mask[:, full:] = keep_top_rows(matrix[:, full:], self.n)
        return mask.view(scores.shape)

    @property
    def cost(self) -> Cost:
        return BLOCKING

    def span(self, ndim: int) -> int:
        return 1 if ndim > 1 else self.m

    @property
    def period(self) -> int:
        return self.m

    def choice(self, rows: int) -> Choice:
        return Choice(self.n, self.m)

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return self if dim == 0 or aligned(start, stop, self.m, matrix_shape(shape)[1]) else None

    def towards(self, share: float) -> Pattern:
        kept = kept_on_the_way(self.n, self.m, share)
        return NM(kept, self.m) if kept < self.m else Unstructured(0.0)

    @property
    def formats(self) -> tuple[str, ...]:
        packed = f"PackedNM({self.n}, {self.m})"
        if self.n != 2 or self.m < 4:
            return (packed,)
        # Any two rows share the four columns that they keep; of 2:4, all rows do.
        return (packed, f"PackedVNM({2 if self.m > 4 else 'all'!r}, 2, {self.m})")

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """The n:m that fits the mask exactly, with the smallest m; else the first one with little waste."""
        kept, size = int(mask.sum()), mask.numel()
        found = []
        for m in (*_USUAL, *widths_of_two(mask)):
            if m > mask.shape[1] or m >= size:  # one group tells nothing
                continue
            n = fullest_group(mask, m, most=min(m - 1, WASTE * kept * m / size))
            if n is not None:
                found.append(cls(n, m))
        exact = [one for one in found if round((1 - one.sparsity_of(mask.shape)) * size) == kept]
        # 1:2 is 2:4 as well, and that is what hardware has
        return min(exact, key=lambda one: (one.m == 2, one.m)) if exact else found[0] if found else None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        columns = matrix_shape(shape)[1]
        if not prod(shape):
            return 0.0
        return 1 - (columns // self.m * self.n + min(self.n, columns % self.m)) / columns

    def __str__(self) -> str:
        return f"{self.n}:{self.m}"


def aligned(start: int, stop: int, m: int, size: int) -> bool:
    """Does a slice of `size` columns (or rows) begin and end between groups of m?"""
    return start % m == 0 and (stop % m == 0 or stop == size)


def kept_on_the_way(n: int, m: int, share: float) -> int:
    """How many of m are kept at the stage `share` on the way to n:m.

    Examples
    --------
    >>> [kept_on_the_way(2, 8, share) for share in (0.0, 0.55, 0.7, 0.85, 1.0)]
    [8, 5, 4, 3, 2]
    """
    return min(m, max(n, round(m - share * (m - n))))


def grouped(mask: Tensor, m: int) -> Tensor:
    """A mask as [rows, groups, m]; the last group is padded with False."""
    return pad(mask, (0, -mask.shape[1] % m)).view(mask.shape[0], -1, m)


def fullest_group(mask: Tensor, m: int, most: float) -> int | None:
    """Return how many of m the fullest group keeps; None if more than ``most``, which a few rows often show.

    Examples
    --------
    >>> mask = torch.tensor([[True, True, False, False, True, False]])
    >>> fullest_group(mask, 3, 2), fullest_group(mask, 3, 1)
    (2, None)
    """
    for rows in (mask[:_FEW], mask):
        n = int(grouped(rows, m).sum(2, dtype=torch.int16).max()) if len(rows) else 0
        if n > most:
            return None
    return n


def widths_of_two(mask: Tensor) -> Iterator[int]:
    """Every m, the widest first, for which a mask may be 2:m with little waste: its rows must need all groups."""
    rows, columns = mask.shape
    groups = -(-int(mask.sum(1).max()) // 2) if rows else 0
    if not groups or 2 * groups * rows > WASTE * int(mask.sum()):
        return
    widest = columns if groups == 1 else (columns - 1) // (groups - 1)
    for m in range(min(widest, _WIDEST), max(-(-columns // groups), 4) - 1, -1):
        if fullest_group(mask, m, most=2) is not None:
            yield m
