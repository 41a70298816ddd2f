"""The base class of scores: pure functions of a tensor and its context that rate how much each value matters."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from .collect import Collector, Mean, Stack


class Score(ABC):
    """How much each value of a tensor matters; the highest are kept.

    When a score is called, its arguments are checked, autograd is off, and it computes in float32 or float64. Keywords
    that it doesn't need are ignored, so a caller can pass everything it has.

    Examples
    --------
    Your own score is one method, and the names of the context that it needs:

    >>> from dataclasses import dataclass
    >>> import torch
    >>> @dataclass(frozen=True)
    ... class Closeness(Score):
    ...     needs = ("target",)
    ...     def rate(self, weight, *, target, **_):
    ...         return -(weight - target).abs()
    >>> Closeness()(torch.tensor([1.0, 2.0]), target=torch.tensor([1.0, 4.0]))
    tensor([-0., -2.])
    """

    needs: ClassVar[tuple[str, ...]] = ()
    """Names of the keywords without which it can't be computed."""

    by_row: ClassVar[bool] = False
    """Do its values compare within a row only? Then pruning takes unstructured sparsity from every row alike."""

    @abstractmethod
    def rate(self, weight: Tensor, **context: Any) -> Tensor:
        """The score itself: `weight` is float32 or float64 and detached; the result has its shape.

        Examples
        --------
        >>> import torch
        >>> from gossamer.scores import Magnitude
        >>> Magnitude().rate(torch.tensor([-2.0, 1.0]))
        tensor([2., 1.])
        """

    def collector(self, rows: int, columns: int, count: int, device: torch.device | str = "cpu") -> Collector | None:
        """Return an object that collects gradients for this score, one at a time; None if it needs none.

        Parameters
        ----------
        rows, columns
            Of the weight as a matrix.
        count
            How many gradients will come.
        device
            Where they are kept.

        Examples
        --------
        >>> from gossamer.scores import Gradient, Magnitude
        >>> type(Gradient().collector(2, 3, count=8)).__name__, Magnitude().collector(2, 3, count=8)
        ('Mean', None)
        """
        if "grads" in self.needs:
            return Stack(rows, columns, count=count, device=device)
        return Mean(rows, columns, count=count, device=device) if "grad" in self.needs else None

    def __call__(self, weight: Tensor, **context: Any) -> Tensor:
        name = type(self).__name__
        weight = as_real(name, "tensor to score", weight)
        missing = [need for need in self.needs if context.get(need) is None]
        if missing:
            wanted = ", ".join(f"{need}=..." for need in self.needs)
            raise ValueError(f"{name} needs {' and '.join(missing)}, which wasn't given. Pass {wanted} as keyword.")
        with torch.no_grad():
            return self.rate(weight, **context)


def as_real(who: str, what: str, x: Tensor) -> Tensor:
    """`x` as float32 or float64, detached; or an error that names the score and the argument."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{who}: the {what} must be a torch.Tensor, got {type(x).__name__}.")
    if not x.dtype.is_floating_point:
        raise TypeError(
            f"{who}: the {what} must be real floating-point, got {x.dtype}. Convert it with .float() first."
        )
    x = x.detach()
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def like_weight(who: str, what: str, x: Tensor, weight: Tensor, leading: int = 0) -> Tensor:
    """`x` checked to be of the weight's shape, with at least `leading` dimensions before it."""
    x = as_real(who, what, x)
    extra = x.dim() - weight.dim()
    if extra < 0 or (extra > 0 and not leading) or x.shape[extra:] != weight.shape:
        shape = ", ".join(map(str, weight.shape))
        allowed = f"({shape})" + (f", or (..., {shape})" if leading else "")
        raise ValueError(f"{who}: {what} must have the weight's shape {allowed}, got {tuple(x.shape)}.")
    return x
