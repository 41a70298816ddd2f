"""The report of pack_: one row per layer, and the time of the model before and after."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gossamer.models.coverage import Left, taken_and_left

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class PackedLayer:
    """The result for one layer."""

    name: str
    shape: tuple[int, ...]
    sparsity: float
    tokens: tuple[int, ...]  # of a convolution: places of the output
    format: str
    dense_us: float
    us: float
    bytes: int
    dense_bytes: int
    clear: bool = True
    """False if other programs disturbed the measurement; such times are not kept."""

    @property
    def gain(self) -> float:
        """How many times faster than dense."""
        return self.dense_us / self.us


@dataclass(frozen=True)
class MeasuredExample:
    """The time of one call of the model with an example, before and after packing."""

    text: str  # the shapes of its tensors
    weight: float
    before_us: float
    us: float
    clear: bool = True
    """False: the machine was busy, and one thread was measured instead of several."""

    @property
    def gain(self) -> float:
        """How many times faster than before."""
        return self.before_us / self.us


@dataclass(frozen=True)
class PackReport:
    """The result of :func:`gossamer.pack_`; print it, or read ``layers`` and ``examples``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> report = gs.pack_(gs.sparsify_(torch.nn.Linear(64, 64), "90%"), tune=False)  # doctest: +ELLIPSIS
    layer...
    >>> [(row.name, row.shape) for row in report.layers]
    [('weight', (64, 64))]
    """

    layers: tuple[PackedLayer, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    measured: bool = True
    examples: tuple[MeasuredExample, ...] = ()
    parameters: int = 0
    """Values of all parameters of the model, if they were dense."""
    sparsity: float = 0.0
    """Share of them that is pruned."""
    dense: tuple[Left, ...] = ()
    """Weights that are dense, and why."""
    without_effect: int = 0
    """Neurons that no layer reads, or whose weights are all 0."""

    @property
    def gain(self) -> float:
        """Dense time divided by packed time, for all layers together."""
        return sum(r.dense_us for r in self.layers) / max(sum(r.us for r in self.layers), 1e-9)

    @property
    def taken(self) -> str:
        """One line: how many sparse weights were packed, why the others were not, and how sparse the model is."""
        size = sum(math.prod(r.shape) for r in self.layers)
        skipped = self.parameters - size - sum(one.size for one in self.dense)
        left = [*self.dense, *([Left("", skipped, "sparse and not packed")] if self.skipped else [])]
        line = taken_and_left(len(self.layers), size, left)
        return f"{line}; the model is {100 * self.sparsity:.1f} % sparse"

    @property
    def left(self) -> tuple[str, ...]:
        """One line for each reason why sparse weights were not packed."""
        names: dict[str, list[str]] = {}
        for name, why in self.skipped:
            names.setdefault(why, []).append(name)
        return tuple(f"not packed: {_some(n)}; {why}" for why, n in names.items())

    @property
    def _advice(self) -> tuple[str, ...]:
        if not self.without_effect:
            return ()
        some = f"{self.without_effect:,} neurons have no effect: no layer reads them, or their weights are 0"
        return (f"{some}. gs.nn.shrink_(model) before pack_ removes them; the outputs stay the same",)

    def table(self) -> Table:
        """Return the report as a rich table."""
        from rich.table import Table  # rich takes as long to import as all of gossamer

        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("layer", overflow="fold")  # names are complete, on two lines if they are long
        for column in ("shape", "tokens", "format"):
            table.add_column(column)
        for column in ("sparsity", "dense us", "packed us", "gain", "bytes"):
            table.add_column(column, justify="right")
        for r in self.layers:
            shape, tokens = " x ".join(map(str, r.shape)), " ".join(map(str, r.tokens))
            gain = f"{r.gain:.2f}x" if r.clear else f"{r.gain:.2f}x ?"
            figures = (f"{r.sparsity:.1%}", f"{r.dense_us:,.0f}", f"{r.us:,.0f}", gain)
            table.add_row(r.name, shape, tokens, r.format, *figures, f"{r.bytes / max(r.dense_bytes, 1):.2f}x")
        for e in self.examples:
            gain = f"{e.gain:.2f}x" if e.clear else f"{e.gain:.2f}x ?"
            table.add_row("[bold]the model[/]", e.text, "", "", "", f"{e.before_us:,.0f}", f"{e.us:,.0f}", gain)
        table.caption = "\n".join((*self.left, self.taken, *self._advice))
        table.caption_justify, table.caption_style = "left", ""
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120, force_jupyter=False)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


_FEW = 3


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:_FEW])
    return shown if len(names) <= _FEW else f"{shown} and {len(names) - _FEW} more"
