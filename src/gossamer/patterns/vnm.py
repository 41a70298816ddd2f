"""V:N:M (VENOM): blocks of v rows share 4 of every m columns, and each row keeps 2 of these 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from torch import Tensor
from torch.nn.functional import pad

from ._checks import as_count
from ._text import INT, Form
from .base import Choice, Cost, Pattern
from .nm import grouped, widths_of_two
from .shared_nm import SharedNM, check_rows

#: Rows that are recognised as sharing columns, the most first. Two rows of 2:m always share 4.
_RECOGNISED = (512, 384, 256, 192, 128, 96, 64, 48, 32, 16, 8, 4)


@dataclass(frozen=True)
class VNM(Pattern):
    """Each block of v rows keeps 4 of every m columns, and each row 2 of those 4, as sparse tensor cores need.

    The 4 columns are chosen such that the rows keep the largest sum of scores. For m <= 32 this is exact (in the
    precision of the scores); above, exchanging any one column doesn't improve it. For equal sums, lower columns are
    kept.

    If the rows are not a multiple of v, the last block has fewer. If the columns are not a multiple of m, the last
    group has r < m columns: min(4, r) are shared and each row keeps min(2, r).

    Parameters
    ----------
    v
        Rows of a block, at least 1, or "all": one block of all rows.
    n
        Must be 2, because of the hardware.
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

    schedule: ClassVar[str] = "decay"
    forms: ClassVar[tuple[Form, ...]] = (
        Form("64:2:8", f"{INT}:{INT}:{INT}", lambda v, n, m: VNM(int(v), int(n), int(m))),
        Form("all:2:8", f"all:{INT}:{INT}", lambda n, m: VNM("all", int(n), int(m))),
    )

    def __post_init__(self) -> None:
        check_rows(self.v)
        object.__setattr__(self, "n", as_count("n", self.n))
        object.__setattr__(self, "m", as_count("m", self.m))
        if self.n != 2:
            raise ValueError(
                f"VNM keeps n = 2 of 4 shared columns, as sparse tensor cores do; got n={self.n}. Use NM(n, m)."
            )
        if self.m < 4:
            raise ValueError(f"VNM shares 4 of every m columns, so m must be at least 4; got m={self.m}.")

    @property
    def _shared(self) -> SharedNM:
        return SharedNM(self.v, 4, 2, self.m)

    @property
    def shares_columns(self) -> bool:
        return self._shared.shares_columns

    def pick(self, scores: Tensor) -> Tensor:
        return self._shared.pick(scores)

    @property
    def cost(self) -> Cost:
        return self._shared.cost

    def span(self, ndim: int) -> int | None:
        return self._shared.span(ndim)

    @property
    def period(self) -> int:
        return self.m

    def choice(self, rows: int) -> Choice:
        return self._shared.choice(rows)

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return None if self._shared.portion(shape, dim, start, stop) is None else self

    def towards(self, share: float) -> Pattern:
        """Keeps more of every m, with more shared columns. For 64:2:8: 64:5:8 of 6, 64:4:8 of 5, 64:3:8 of 5."""
        return self if share >= 1 else self._shared.towards(share)

    @property
    def formats(self) -> tuple[str, ...]:
        return (f"PackedVNM({self.v!r}, 2, {self.m})", f"PackedNM(2, {self.m})")

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """A 2:m whose rows share columns, with as many rows in a block as possible."""
        rows = len(mask)
        for m in widths_of_two(mask):
            groups = grouped(mask, m)
            for v in (rows, *(v for v in _RECOGNISED if v < rows)) if m > 4 and rows > 2 else ():
                used = pad(groups, (0, 0, 0, 0, 0, -rows % v)).view(-1, v, *groups.shape[1:]).any(1)
                if int(used.sum(-1).max()) <= 4:
                    return cls("all" if v == rows else v, 2, m)
        return None

    def sparsity_of(self, shape: Sequence[int]) -> float:
        return self._shared.sparsity_of(shape)

    def __str__(self) -> str:
        return f"{self.v}:{self.n}:{self.m}"
