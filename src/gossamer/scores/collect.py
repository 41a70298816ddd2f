"""Collecting gradients one at a time: what scores store of them."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Collector(Protocol):
    """Collects gradients of a weight [rows, columns], one after the other."""

    @property
    def nbytes(self) -> int:
        """Bytes that it stores in the end."""

    @property
    def empty(self) -> bool:
        """Were all gradients zero?"""

    @property
    def context(self) -> dict[str, Any]:
        """What a score gets, as keywords."""

    def add(self, grad: Tensor) -> None:
        """Add one gradient."""


class Mean:
    """The mean of the gradients.

    Examples
    --------
    >>> import torch
    >>> mean = Mean(1, 2, count=2)
    >>> mean.add(torch.tensor([[1.0, 0.0]])), mean.add(torch.tensor([[3.0, 0.0]]))
    (None, None)
    >>> mean.grad
    tensor([[2., 0.]])
    """

    def __init__(self, rows: int, columns: int, *, count: int, device: torch.device | str = "cpu") -> None:
        self.grad = torch.zeros(rows, columns, device=device)
        self.count = count

    @property
    def nbytes(self) -> int:
        return self.grad.nbytes

    @property
    def empty(self) -> bool:
        return not bool(self.grad.any())

    @property
    def context(self) -> dict[str, Any]:
        return {"grad": self.grad}

    def add(self, grad: Tensor) -> None:
        self.grad.add_(grad.detach(), alpha=1 / self.count)


class Stack:
    """All gradients, as [count, rows, columns].

    Examples
    --------
    >>> import torch
    >>> stack = Stack(1, 2, count=2)
    >>> stack.add(torch.ones(1, 2)), stack.grads.shape
    (None, torch.Size([1, 1, 2]))
    """

    def __init__(self, rows: int, columns: int, *, count: int, device: torch.device | str = "cpu") -> None:
        self._held = torch.empty(count, rows, columns, device=device)
        self._filled = 0

    @property
    def grads(self) -> Tensor:
        """The gradients so far."""
        return self._held[: self._filled]

    @property
    def nbytes(self) -> int:
        return self._held.nbytes

    @property
    def empty(self) -> bool:
        return not bool(self.grads.any())

    @property
    def context(self) -> dict[str, Any]:
        return {"grads": self.grads}

    def add(self, grad: Tensor) -> None:
        self._held[self._filled] = grad.detach()
        self._filled += 1
