"""STen's grouped n:m: n of every m columns, and within a chunk of rows every choice is used equally often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb, prod
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count, as_matrix, check_n_of_m, check_scores, matrix_shape
from ._rank import tame
from ._text import INT, Form
from ._transport import assign
from .base import BLOCKING, Cost, Pattern
from .nm import NM, aligned, grouped

_MOST_PATTERNS = 4096
_RECOGNISED = (1, 2, 4, 8, 16, 32, 64)  # g, the smallest first: its multiples hold as well


@dataclass(frozen=True)
class GroupedNM(Pattern):
    """Keeps n of every m columns; in each chunk of rows, each of the C(m, n) patterns is used by exactly g rows.

    Columns are divided into blocks of m, rows into chunks of C(m, n) * g. So a kernel can process the patterns in a
    fixed order, without a branch or a gather. The patterns are assigned to the rows such that the sum of kept scores is
    the largest possible. This is exact, with scores rounded to 2**-30 of the largest in their block and chunk. For
    equal sums the result is deterministic, but not always the lowest index.

    If the rows are not a multiple of the chunk, each pattern is used at most g times in the last, shorter chunk. If the
    columns are not a multiple of m, the last block is padded with columns of score 0, so its rows may keep fewer than n
    values.

    Parameters
    ----------
    n, m
        1 <= n <= m, with at most 4096 patterns.
    g
        How many rows of a chunk share a pattern, at least 1.

    Examples
    --------
    >>> import torch
    >>> scores = torch.tensor([[9.0, 8.0], [5.0, 1.0]])
    >>> GroupedNM(1, 2, 1).select(scores).int().tolist()  # both rows prefer column 0; the first loses less
    [[0, 1], [1, 0]]
    >>> str(GroupedNM(1, 8, 16))
    '1:8:g16'
    """

    n: int
    m: int
    g: int

    schedule: ClassVar[str] = "decay"
    forms: ClassVar[tuple[Form, ...]] = (
        Form("1:8:g16", f"{INT}:{INT}:g{INT}", lambda n, m, g: GroupedNM(int(n), int(m), int(g))),
    )

    def __post_init__(self) -> None:
        for name in ("n", "m", "g"):
            object.__setattr__(self, name, as_count(name, getattr(self, name)))
        check_n_of_m("GroupedNM", self.n, self.m)
        if comb(self.m, self.n) > _MOST_PATTERNS:
            raise ValueError(
                f"GroupedNM({self.n}, {self.m}) would have {comb(self.m, self.n)} patterns; "
                f"at most {_MOST_PATTERNS} are supported. Use a smaller m."
            )

    @property
    def patterns(self) -> tuple[tuple[int, ...], ...]:
        """The C(m, n) sets of kept positions in revolving-door order: neighbours differ in one position.

        Examples
        --------
        >>> GroupedNM(2, 4, 1).patterns
        ((0, 1), (1, 2), (0, 2), (2, 3), (1, 3), (0, 3))
        """
        return _revolving_door(self.n, self.m)

    @property
    def chunk(self) -> int:
        """Rows of a full chunk: C(m, n) * g.

        Examples
        --------
        >>> GroupedNM(2, 4, 8).chunk
        48
        """
        return comb(self.m, self.n) * self.g

    def assign(self, scores: Tensor) -> Tensor:
        """Which of `patterns` each row uses in each block: int64 [blocks, chunks, chunk], -1 for rows past the end.

        Examples
        --------
        >>> import torch
        >>> GroupedNM(1, 2, 1).assign(torch.tensor([[9.0, 8.0], [5.0, 1.0], [7.0, 6.0]])).tolist()
        [[[1, 0], [0, -1]]]
        """
        with torch.no_grad():
            return self._assign(check_scores(scores, "GroupedNM"))

    def _assign(self, scores: Tensor) -> Tensor:
        matrix = tame(as_matrix(scores).double())
        rows, columns = matrix.shape
        chunks, blocks = -(-rows // self.chunk), -(-columns // self.m)
        lines = pad(matrix, (0, -columns % self.m)).view(rows, blocks, self.m).movedim(1, 0)
        choices = _choices(self.n, self.m).to(matrix.device)
        full = rows - rows % self.chunk
        used = torch.full((blocks, chunks * self.chunk), -1, dtype=torch.int64, device=matrix.device)
        if full:
            problems = lines[:, :full].reshape(-1, self.chunk, self.m)
            used[:, :full] = assign(problems, choices, self.g).view(blocks, full)
        if rows > full:
            used[:, full:rows] = assign(lines[:, full:].contiguous(), choices, self.g)
        return used.view(blocks, chunks, self.chunk)

    def pick(self, scores: Tensor) -> Tensor:
        rows, columns = as_matrix(scores).shape
        if not scores.numel():
            return torch.zeros(scores.shape, dtype=torch.bool, device=scores.device)
        used = self._assign(scores).flatten(1)[:, :rows]
        masks = _choices(self.n, self.m).bool().t().to(scores.device)[used]
        return masks.movedim(0, 1).reshape(rows, -1)[:, :columns].reshape(scores.shape)

    @property
    def cost(self) -> Cost:
        return BLOCKING

    def span(self, ndim: int) -> int:
        return self.chunk if ndim > 1 else self.m

    @property
    def period(self) -> int:
        return self.m

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return self if aligned(start, stop, (self.chunk, self.m)[dim], matrix_shape(shape)[dim]) else None

    def towards(self, share: float) -> Pattern:
        return self if share >= 1 else NM(self.n, self.m).towards(share)

    @property
    def formats(self) -> tuple[str, ...]:
        return NM(self.n, self.m).formats

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """An n:m whose choices are used equally often in each chunk of rows, except in a shorter last chunk."""
        found = NM.recognise(mask)
        if found is None or comb(found.m, found.n) > _MOST_PATTERNS:
            return None
        rows, choices = mask.shape[0], comb(found.m, found.n)
        bits = torch.arange(found.m, device=mask.device)
        words = (grouped(mask, found.m)[:, : mask.shape[1] // found.m].long() << bits).sum(2)
        for g in _RECOGNISED:
            chunk = choices * g
            if rows < max(chunk, 2 * choices):
                return None
            runs = words[: rows - rows % chunk].view(rows // chunk, chunk, -1).sort(1).values
            runs = runs.view(rows // chunk, choices, g, -1)
            if bool((runs == runs[:, :, :1]).all()) and bool((runs[:, 1:, 0] != runs[:, :-1, 0]).all()):
                return cls(found.n, found.m, g)
        return None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        """1 - n / m: exact if m divides the columns or the chunk divides the rows, else approximate.

        Examples
        --------
        >>> GroupedNM(1, 4, 8).sparsity_of((32, 64))
        0.75
        """
        return 1 - self.n / self.m if prod(shape) else 0.0

    def __str__(self) -> str:
        return f"{self.n}:{self.m}:g{self.g}"


@lru_cache
def _revolving_door(n: int, m: int) -> tuple[tuple[int, ...], ...]:
    """All n-subsets of range(m), each obtained from the one before by swapping one element for another.

    Those without m-1 come first, then, in reverse order, the (n-1)-subsets of range(m-1) with m-1 added (Nijenhuis
    and Wilf).
    """
    if n == 0:
        return ((),)
    if n == m:
        return (tuple(range(m)),)
    return _revolving_door(n, m - 1) + tuple((*rest, m - 1) for rest in reversed(_revolving_door(n - 1, m - 1)))


@lru_cache
def _choices(n: int, m: int) -> Tensor:
    """[m, C(m, n)]: 1 where the pattern keeps the position."""
    table = torch.zeros(m, comb(m, n))
    for column, kept in enumerate(_revolving_door(n, m)):
        table[list(kept), column] = 1
    return table
