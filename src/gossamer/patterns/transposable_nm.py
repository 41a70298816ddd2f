"""Keeps n of every 4 neighbours along rows and along columns, so the transpose has the same pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.native.cuda import function, usable

from ._checks import as_count, as_matrix, matrix_shape
from ._text import INT, Form
from .base import Pattern
from .nm import aligned, kept_on_the_way
from .unstructured import Unstructured

_SIDE = 4
_HUGE = 2.0**1000  # what infinite scores become, so that sums are no NaN
_BLOCKS = 1 << 20  # that are searched at a time: 90 sums each, in float64, take 755 MB


@lru_cache(maxsize=4)
def masks_of(n: int) -> Tensor:
    """Return all masks of a block: n of 4 in every row and in every column, [masks, 16].

    Examples
    --------
    >>> [len(masks_of(n)) for n in (1, 2, 3, 4)]
    [24, 90, 24, 1]
    """
    rows = [tuple(int(i in kept) for i in range(_SIDE)) for kept in combinations(range(_SIDE), n)]
    found = [
        each for each in product(rows, repeat=_SIDE) if all(sum(column) == n for column in zip(*each, strict=True))
    ]
    return torch.tensor(found, dtype=torch.bool).view(-1, _SIDE * _SIDE)


def _launch(scores: Tensor) -> Tensor:
    """Return the mask of a contiguous float32 matrix of whole blocks, by one kernel."""
    rows, columns = scores.shape
    mask = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    blocks = rows * columns // _SIDE**2
    run = function("transposable.cu", "transposable", scores.get_device(), "P P q q", ELEMENT=2)
    run((-(-blocks // 128), 1, 1), 128, scores.data_ptr(), mask.data_ptr(), columns, blocks)
    return mask


@dataclass(frozen=True)
class TransposableNM(Pattern):
    """In every block of 4 x 4, keeps n values in each row and in each column, with the highest sum.

    The search is exact: all masks of a block are compared (90 for n = 2). Sparse tensor cores can then multiply by the
    matrix and by its transpose. If the sides of a matrix are not multiples of 4, blocks at its edges may keep fewer.

    Parameters
    ----------
    n, m
        1 <= n <= 4, and m is 4.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[9.0, 8.0, 1.0, 1.0], [9.0, 8.0, 1.0, 1.0], [9.0, 1.0, 2.0, 3.0], [1.0, 1.0, 2.0, 3.0]])
    >>> TransposableNM(2, 4).select(scores).int()
    tensor([[1, 1, 0, 0],
            [1, 1, 0, 0],
            [0, 0, 1, 1],
            [0, 0, 1, 1]], dtype=torch.int32)
    """

    n: int = 2
    m: int = _SIDE

    schedule: ClassVar[str] = "decay"
    forms: ClassVar[tuple[Form, ...]] = (
        Form("2:4 transposable", f"{INT}:{INT} transposable", lambda n, m: TransposableNM(int(n), int(m))),
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", as_count("n", self.n))
        if self.m != _SIDE or not 1 <= self.n <= _SIDE:
            raise ValueError(f"TransposableNM keeps n of every 4, n from 1 to 4; got n={self.n}, m={self.m}")

    def pick(self, scores: Tensor) -> Tensor:
        matrix = as_matrix(scores)
        rows, columns = matrix.shape
        if not matrix.numel():
            return torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        whole = not (rows % _SIDE or columns % _SIDE)
        if whole and self.n == 2 and matrix.is_cuda and matrix.dtype == torch.float32 and usable():
            return _launch(matrix.contiguous()).view(scores.shape)
        return self._search(matrix).reshape(scores.shape)

    def _search(self, matrix: Tensor) -> Tensor:
        """Compare the sums of all masks, block by block."""
        rows, columns = matrix.shape
        matrix = matrix.double().clamp(-_HUGE, _HUGE)
        if (
            rows % _SIDE or columns % _SIDE
        ):  # scores from 1/4 on, so that positions outside the matrix, with score 0, are kept last
            lowest, highest = matrix.aminmax()
            matrix = (matrix - lowest) / (highest - lowest).clamp(min=torch.finfo(torch.float64).tiny) + 0.25
            matrix = pad(matrix, (0, -columns % _SIDE, 0, -rows % _SIDE))
        high, wide = matrix.shape[0] // _SIDE, matrix.shape[1] // _SIDE
        blocks = matrix.view(high, _SIDE, wide, _SIDE).transpose(1, 2).reshape(-1, _SIDE * _SIDE)
        masks = masks_of(self.n).to(matrix.device)
        weights = masks.double().t()
        best = torch.cat([(part @ weights).argmax(1) for part in blocks.split(_BLOCKS)])
        chosen = masks[best].view(high, wide, _SIDE, _SIDE).transpose(1, 2).reshape(matrix.shape)
        return chosen[:rows, :columns]

    def span(self, ndim: int) -> int | None:
        return _SIDE if ndim > 1 else None

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return self if aligned(start, stop, _SIDE, matrix_shape(shape)[dim]) else None

    def towards(self, share: float) -> Pattern:
        kept = kept_on_the_way(self.n, self.m, share)
        return TransposableNM(kept, self.m) if kept < self.m else Unstructured(0.0)

    @property
    def formats(self) -> tuple[str, ...]:
        packed = f"PackedNM({self.n}, {self.m})"
        return (packed, "PackedVNM('all', 2, 4)") if self.n == 2 else (packed,)

    def sparsity_of(self, shape: Sequence[int]) -> float | None:
        rows, columns = matrix_shape(shape)
        return None if rows % _SIDE or columns % _SIDE else 1 - self.n / self.m

    def __str__(self) -> str:
        return f"{self.n}:{self.m} transposable"
