"""Keeps values above a threshold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import ClassVar

from torch import Tensor

from ._text import NUMBER, Form
from .base import STREAMING, Cost, Pattern


@dataclass(frozen=True)
class Threshold(Pattern):
    """Keeps scores strictly above `t`, so `Threshold(0.0)` with magnitudes removes exactly the zeros.

    Parameters
    ----------
    t
        Any finite number. It is compared in the precision of the scores.

    Examples
    --------
    >>> import torch
    >>> Threshold(0.5).select(torch.tensor([0.2, 0.5, 0.9]))
    tensor([False, False,  True])
    >>> str(Threshold(0.5))
    '|x| > 0.5'
    """

    t: float

    ranks: ClassVar[bool] = False
    forms: ClassVar[tuple[Form, ...]] = (
        Form("|x| > 0.01", rf"(?:\|x\| ?)?> ?{NUMBER}", lambda t: Threshold(float(t))),
    )

    def __post_init__(self) -> None:
        if isinstance(self.t, bool) or not isinstance(self.t, Real):
            raise TypeError(f"Threshold needs a number, got {self.t!r} of type {type(self.t).__name__}.")
        if not math.isfinite(self.t):
            raise ValueError(f"Threshold needs a finite number, got {self.t!r}. To keep everything use KeepAll().")
        object.__setattr__(self, "t", float(self.t))

    def pick(self, scores: Tensor) -> Tensor:
        return scores > self.t

    @property
    def cost(self) -> Cost:
        return STREAMING

    def portion(self, shape: Sequence[int], dim: int, start: int, stop: int) -> Pattern | None:
        return self

    def __str__(self) -> str:
        return f"|x| > {self.t!r}"
