"""What every pattern is: a rule that turns scores into a mask.

A new pattern is a frozen dataclass with one method, `pick`. The base class checks the scores, keeps autograd out, and
gives everything else a safe default, so that a new pattern is right before it is fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor


class Cost(NamedTuple):
    """What a sparsifier does to the memory: how it reads its input, how often, and how much it holds.

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


class Pattern(ABC):
    """Which sets of positions may stay.

    Patterns are frozen, compare by value and print as a string that `as_pattern` reads back. Matrix patterns see
    dimension 0 as rows and all others, flattened, as columns; a 1-d tensor is one row.

    Examples
    --------
    A pattern of your own is a few lines:

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

    @abstractmethod
    def pick(self, scores: Tensor) -> Tensor:
        """The rule itself: `scores` is float32 or float64, without NaN and gradients; the answer is a bool mask.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import NM
        >>> NM(1, 2).pick(torch.tensor([1.0, 2.0]))
        tensor([False,  True])
        """

    def select(self, scores: Tensor) -> Tensor:
        """Which positions stay: a bool mask of the shape of `scores`, where a higher score is likelier to stay.

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
        """Masks of several tensors. Each is on its own, unless the pattern ranks over all of them.

        Examples
        --------
        >>> import torch
        >>> from gossamer.patterns import Unstructured
        >>> a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        >>> [mask.int().tolist() for mask in Unstructured(0.5, per="model").select_many([a, b])]
        [[0, 0], [1, 1]]
        """
        return [self.select(one) for one in scores]

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

    @property
    def kind(self) -> str:
        """What must be there to decide: a value ("streaming"), a block ("blocking") or the tensor ("materializing").

        Examples
        --------
        >>> from gossamer.patterns import Threshold
        >>> Threshold(0.1).kind
        'streaming'
        """
        return self.cost.kind

    @property
    def passes(self) -> int:
        """How many times the values are read.

        Examples
        --------
        >>> from gossamer.patterns import Unstructured
        >>> Unstructured(0.9).passes
        2
        """
        return self.cost.passes

    @property
    def memory(self) -> str:
        """What is held while deciding: "O(1)", "O(b)" for a block of b values, or "O(nnz)".

        Examples
        --------
        >>> from gossamer.patterns import Unstructured
        >>> Unstructured(0.9).memory
        'O(nnz)'
        """
        return self.cost.memory

    def span(self, ndim: int) -> int | None:
        """How many neighbours along dimension 0 of an `ndim`-d tensor are decided together; None: all of them.

        Examples
        --------
        >>> from gossamer.patterns import NM, VNM
        >>> NM(2, 4).span(2), NM(2, 4).span(1), VNM(64, 2, 8).span(2)
        (1, 4, 64)
        """
        return 1 if self.kind == "streaming" else None

    def sparsity_of(self, shape: Sequence[int]) -> float | None:
        """The share of values that go from a tensor of this shape; None where it depends on the scores.

        Examples
        --------
        >>> from gossamer.patterns import NM, Threshold
        >>> NM(2, 4).sparsity_of((3, 8)), Threshold(0.1).sparsity_of((3, 8))
        (0.5, None)
        """
        return None


def check_scores(scores: Tensor, name: str) -> Tensor:
    """The scores as float32 or float64, detached; or an error that says why `name` can't rank them."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"{name} needs a tensor of scores, got {type(scores).__name__}. Use torch.as_tensor(...) first."
        )
    if not scores.dtype.is_floating_point:
        raise TypeError(
            f"{name} needs real floating-point scores, got {scores.dtype}. "
            "Score the tensor first, for example with gossamer.Magnitude(), or convert it with .float()."
        )
    scores = scores.detach()
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if bool(scores.isnan().any()):
        bad = int(scores.isnan().sum())
        raise ValueError(
            f"{name} can't rank NaN: {bad} of {scores.numel()} scores of shape {tuple(scores.shape)} are NaN. "
            "Look for an overflow in the weights or gradients, or replace them with torch.nan_to_num."
        )
    return scores


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns that a matrix pattern sees in a tensor of this shape."""
    if len(shape) < 2:
        return 1, prod(shape)
    return shape[0], prod(shape[1:])


def as_matrix(scores: Tensor) -> Tensor:
    """The scores as rows x columns (a view where strides allow)."""
    return scores.reshape(matrix_shape(scores.shape))
