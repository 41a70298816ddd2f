"""What the benchmark of language models trains: a method, a pattern, and how the learning rate goes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from gossamer import train


@dataclass(frozen=True)
class Case:
    """One training.

    Parameters
    ----------
    name
        As the table has it.
    method
        A class of ``gs.train`` by its name, "recipe", or "" for a dense net.
    how
        Sparsity or pattern, in its short form.
    options
        Of the method. ``start`` and ``until`` are shares of all steps.
    width
        Of the net.
    rate
        How the learning rate goes: "cosine" (to 0, after a warm-up of a thirtieth of the steps) or "constant".
    boost
        The learning rate of the linear layers is that of all others times this.
    follow
        The same factor, but from the density at each step: ``density ** -follow``. 0: it does not change.
    distil
        Weight of the trained dense net's predictions in the loss, from 0 to 1.
    trained
        Begin with the trained dense net.
    """

    name: str
    method: str = ""
    how: str = ""
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    width: int = 512
    rate: str = "cosine"
    boost: float = 1.0
    follow: float = 0.0
    distil: float = 0.0
    trained: bool = False

    def made(self, model: nn.Module, optimizer: Any, steps: int) -> Any:
        """Make the method for a model; None for a dense one."""
        if not self.method:
            return None
        options = dict(self.options)
        for name in ("start", "until"):
            if name in options:
                options[name] = round(options[name] * steps)
        options.setdefault("every", min(100, max(steps // 15, 1)))
        kind = getattr(train, self.method)
        return kind(model, optimizer, *([self.how] if self.how else []), **options)

    def schedule(self, steps: int) -> Callable[[int], float]:
        """Return the learning rate of a step (from 0), relative to the highest."""
        if self.rate == "constant":
            return lambda step: 1.0
        warm = max(steps // 30, 1)
        return lambda step: min((step + 1) / warm, 1.0) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2


_END = {"until": 0.75}
_SCRATCH = ("Static", "SET", "RigL", "SRigL", "GMP", "ACDC", "TopKAST", "Movement", "HardConcrete")

#: Every method at 90 %, dense nets, and n:m, in the order of the table.
METHODS = [
    Case("dense"),
    Case("dense, equal weights", width=160),
    *(Case(f"{name} 90%", name, "90%" if name != "SRigL" else "", {} if name == "Static" else _END)
      for name in _SCRATCH),
    Case("recipe 90%", "GMP", "90%", {"start": 0.15, "until": 0.75}, follow=1.2),
    Case("SR-STE 2:4", "SRSTE", "2:4"),
]  # fmt: skip
