"""The base class of patterns: a rule that turns scores into a mask.

A new pattern is a frozen dataclass with one method, `pick`. The base class checks the scores, turns autograd off, and
has a safe default for everything else, so that a new pattern is correct before it is fast. The optional methods
describe how a pattern can be split, how it is reached in stages, which choices its rows have, which formats suit it,
how its masks are recognised and how it is written. So no other code needs to check the class of a pattern.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from ._checks import check_scores
from ._text import Form

WASTE = 1.1
"""A mask has a pattern if the pattern keeps at most this many times the positions that the mask keeps."""


class Cost(NamedTuple):
    """How a sparsifier uses memory: how it reads its input, how often, and how much it stores.

    Examples
    --------
    >>> Cost("blocking", 2, "O(b)").kind
    'blocking'
    """

    kind: str
    passes: int
    memory: str


STREAMING = Cost("streaming", 1, "O(1)")
BLOCKING = Cost("blocking", 2, "O(b)")
MATERIALIZING = Cost("materializing", 2, "O(nnz)")


class Choice(NamedTuple):
    """The choice that each row has in a group of m columns: which n of them it keeps.

    If `shared` isn't None, `rows` neighbouring rows choose among the same `shared` columns.
    """

    n: int
    m: int
    rows: int = 1
    shared: int | None = None


class Pattern(ABC):
    """Which positions may be kept.

    Patterns are frozen, compare by value and print as a string that `as_pattern` reads back. Matrix patterns use
    dimension 0 as rows and all others, flattened, as columns; a 1-d tensor is one row.

    Examples
    --------
    Your own pattern takes a few lines:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> @dataclass(frozen=True)
    ... class Diagonal(Pattern):
    ...     def pick(self, scores):
    ...         return torch.eye(*scores.shape, dtype=torch.bool)
    >>> Diagonal().select(torch.rand(2, 3)).int()
    tensor([[1, 0, 0],
            [0, 1, 0]], dtype=torch.int32)
    """

    forms: ClassVar[tuple[Form, ...]] = ()
    """How it is written: what `as_pattern` reads."""

    schedule: ClassVar[str] = "cubic"
    """The usual schedule on the way to it, for gradual pruning."""

    ranks: ClassVar[bool] = True
    """Does it rank scores? False: it compares each with a number, so the unit of the scores matters."""

    @property
    def shares_columns(self) -> bool:
        """Do all rows keep values in the same columns? Then layers with the same input are pruned as one matrix.

        Examples
        --------
        >>> from gossamer.patterns import NM, VNM
        >>> VNM("all", 2, 8).shares_columns, VNM(64, 2, 8).shares_columns, NM(2, 4).shares_columns
        (True, False, False)
        """
        return False

    # -- which positions stay

    @abstractmethod
    def pick(self, scores: Tensor) -> Tensor:
        """The rule itself: `scores` is float32 or float64, without NaN and gradients; returns a bool mask.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import NM
        >>> NM(1, 2).pick(torch.tensor([1.0, 2.0]))
        tensor([False,  True])
        """

    def select(self, scores: Tensor) -> Tensor:
        """Which positions are kept: a bool mask with the shape of `scores`. Higher scores are preferred.

        Parameters
        ----------
        scores
            A real floating-point tensor of any shape. Half precision is compared in float32.

        Raises
        ------
        TypeError
            If the scores aren't a real floating-point tensor.
        ValueError
            If a score is NaN, or the pattern doesn't fit the shape.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import NM
        >>> NM(2, 4).select(torch.tensor([[4.0, 1.0, 3.0, 2.0]])).int()
        tensor([[1, 0, 1, 0]], dtype=torch.int32)
        """
        with torch.no_grad():
            return self.pick(check_scores(scores, type(self).__name__))

    def select_many(self, scores: Sequence[Tensor]) -> list[Tensor]:
        """Masks of several tensors: each separately, unless the pattern ranks them together.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import Unstructured
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        >>> [mask.int().tolist() for mask in Unstructured(0.5, per="model").select_many([a, b])]
        [[0, 0], [1, 1]]
        """
        return [self.select(one) for one in scores]

    def select_by_row(self, scores: Tensor) -> Tensor:
        """The same for scores that are comparable only within a row (Wanda's): each row loses the same share.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import Unstructured
        >>> Unstructured(0.5).select_by_row(torch.tensor([[1.0, 2.0], [30.0, 40.0]])).int().tolist()
        [[0, 1], [0, 1]]
        """
        return self.select(scores)

    @property
    def joint(self) -> bool:
        """Does it rank several tensors together?

        Examples
        --------
        >>> from gossamer.patterns import Unstructured
        >>> Unstructured(0.9, per="model").joint
        True
        """
        return False

    # -- what it costs

    @property
    def cost(self) -> Cost:
        """Kind, passes and memory together.

        Examples
        --------
        >>> from gossamer.patterns import NM
        >>> NM(2, 4).cost
        Cost(kind='blocking', passes=2, memory='O(b)')
        """
        return MATERIALIZING

    def sparsity_of(self, shape: Sequence[int]) -> float | None:
        """The share of values that are removed from a tensor of this shape; None if it depends on the scores.

        Examples
        --------
        >>> from gossamer.patterns import NM, Threshold
        >>> NM(2, 4).sparsity_of((3, 8)), Threshold(0.1).sparsity_of((3, 8))
        (0.5, None)
        """
        return None

    # -- how it splits

    def span(self, ndim: int) -> int | None:
        """How many neighbours along dimension 0 of an `ndim`-d tensor are decided together; None: all of them.

        Examples
        --------
        >>> from gossamer.patterns import NM, VNM
        >>> NM(2, 4).span(2), NM(2, 4).span(1), VNM(64, 2, 8).span(2)
        (1, 4, 64)
        """
        return 1 if self.cost.kind == "streaming" else None

    @property
    def period(self) -> int | None:
        """The number of columns that are decided independently of the others; None if all are ranked together.

        Examples
        --------
        >>> from gossamer.patterns import NM, Unstructured
        >>> NM(2, 4).period, Unstructured(0.9).period
        (4, None)
        """
        return None

    @property
    def unit(self) -> tuple[int, int]:
        """Rows and columns that are kept or removed together.

        Examples
        --------
        >>> from gossamer.patterns import NM, Blocks
        >>> Blocks(0.5, (1, 4)).unit, NM(2, 4).unit
        ((1, 4), (1, 1))
        """
        return 1, 1

    def choice(self, rows: int) -> Choice | None:
        """The choice that each row has in each group of columns, in a matrix of `rows` rows; None if the pattern is not
        of this kind.

        Examples
        --------
        >>> from gossamer.patterns import NM, VNM
        >>> NM(2, 4).choice(128)
        Choice(n=2, m=4, rows=1, shared=None)
        >>> VNM(64, 2, 8).choice(128)
        Choice(n=2, m=8, rows=64, shared=4)
        """
        return None

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        """The pattern of rows (dim 0) or columns (dim 1) `start` to `stop` of a matrix of this shape.

        The masks of all portions together keep as many values as the pattern keeps in the matrix. This is for columns
        that are decided a few at a time, parts of a weight, and rows on other ranks. None if the pattern can't be split
        there.

        Examples
        --------
        >>> from gossamer.patterns import NM, Unstructured
        >>> [Unstructured(0.5).portion((1, 4), 1, at, at + 1).sparsity for at in range(4)]  # halves round to even
        [0.0, 1.0, 1.0, 0.0]
        >>> NM(2, 4).portion((8, 32), 1, 0, 6) is None
        True
        """
        return None

    def towards(self, share: float) -> Pattern:
        """A less strict pattern, at the stage `share` (0 to 1) on the way to this one.

        Examples
        --------
        >>> from gossamer.patterns import NM, VNM, Unstructured
        >>> [str(Unstructured(0.8).towards(share)) for share in (0.5, 1.0)]
        ['40%', '80%']
        >>> [str(VNM(64, 2, 8).towards(share)) for share in (0.55, 0.7, 0.85, 1.0)]
        ['64:5:8 of 6', '64:4:8 of 5', '64:3:8 of 5', '64:2:8']
        """
        return self

    # -- how it is stored and recognised

    @property
    def formats(self) -> tuple[str, ...]:
        """Formats that are made for it, as strings, best first; every other format works too.

        Examples
        --------
        >>> from gossamer.patterns import Blocks, Unstructured
        >>> Blocks(0.5, (4, 4)).formats, Unstructured(0.9).formats
        (('BSR((4, 4))',), ())
        """
        return ()

    @classmethod
    def recognise(cls, mask: Tensor) -> Self | None:
        """The pattern of this kind that a matrix of kept positions has, or None; see `gossamer.patterns.recognise`."""
        return None
