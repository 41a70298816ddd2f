"""The whole model, before and after: the same call of the model and of a dense copy."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn

from gossamer.models.pack.examples import Example, evaluating
from gossamer.models.surgery import densify_
from gossamer.report.page import Column, Html, table
from gossamer.report.timing import interleaved

SECONDS = 0.5  # of measuring, for each of the two


@dataclass(frozen=True)
class Whole:
    """The time of a call of a model, dense and sparse."""

    model: str
    case: str  # shapes of the inputs
    dense_ms: float
    ms: float

    @property
    def gain(self) -> float:
        """How many times faster than dense."""
        return self.dense_ms / self.ms

    @property
    def text(self) -> str:
        """A description of the figure."""
        name = f"{self.model}, whole model" if self.model else "whole model"
        return f"{name}, {self.case}: {self.dense_ms:,.3g} ms dense, {self.ms:,.3g} ms now"


def measured(model: nn.Module, name: str, examples: Sequence[Example], seconds: float = SECONDS) -> list[Whole]:
    """Measure calls of a model, alternating with calls of a dense copy.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = gs.sparsify_(torch.nn.Linear(64, 64), "90%")
    >>> [found.case for found in measured(model, "", [Example(torch.randn(4, 64))], 0.01)]
    ['4 x 64']
    """
    dense = densify_(copy.deepcopy(model))
    found = []
    with evaluating(model), evaluating(dense):
        for example in examples:
            calls = {form: partial(_run, example, m) for form, m in (("dense", dense), ("now", model))}
            times = interleaved(calls, seconds)
            found.append(Whole(name, example.text, 1e3 * times["dense"], 1e3 * times["now"]))
    return found


def _run(example: Example, model: nn.Module) -> None:
    example.fresh().run(model)


def shown(found: Sequence[Whole]) -> Html:
    """Return the times as a table."""
    columns = [Column("inputs", kind="code"), Column("gain", "{:.2f}x".format)]
    columns += [Column("dense ms", "{:,.3g}".format), Column("ms", "{:,.3g}".format)]
    rows = [[x.case, x.gain, x.dense_ms, x.ms] for x in found]
    if any(x.model for x in found):
        columns.insert(0, Column("model", kind=""))
        rows = [[x.model, *row] for x, row in zip(found, rows, strict=True)]
    return table(columns, rows)
