"""What pack_ says: one row a layer, and the time of the model before and after."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class PackedLayer:
    """What became of one layer."""

    name: str
    shape: tuple[int, ...]
    sparsity: float
    tokens: tuple[int, ...]  # of a convolution: places of the output
    format: str
    dense_us: float
    us: float
    bytes: int
    dense_bytes: int

    @property
    def gain(self) -> float:
        """How many times faster than dense."""
        return self.dense_us / self.us


@dataclass(frozen=True)
class MeasuredExample:
    """How long one call of the model took with an example, as it was given to pack_ and as it is packed now."""

    text: str  # the shapes of its tensors
    weight: float
    before_us: float
    us: float

    @property
    def gain(self) -> float:
        """How many times faster than before."""
        return self.before_us / self.us


@dataclass(frozen=True)
class PackReport:
    """What :func:`gossamer.pack_` did; print it, or read ``layers`` and ``examples``.

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

    @property
    def gain(self) -> float:
        """Dense time over packed time, of all layers together."""
        return sum(r.dense_us for r in self.layers) / max(sum(r.us for r in self.layers), 1e-9)

    def table(self) -> Table:
        """Return the report as a rich table."""
        from rich.table import Table  # rich takes as long to import as all of gossamer

        table = Table("layer", "shape", "tokens", "format", box=None, padding=(0, 2, 0, 0))
        for column in ("sparsity", "dense us", "packed us", "gain", "bytes"):
            table.add_column(column, justify="right")
        for r in self.layers:
            shape, tokens = " x ".join(map(str, r.shape)), " ".join(map(str, r.tokens))
            figures = (f"{r.sparsity:.1%}", f"{r.dense_us:,.0f}", f"{r.us:,.0f}", f"{r.gain:.2f}x")
            table.add_row(r.name, shape, tokens, r.format, *figures, f"{r.bytes / max(r.dense_bytes, 1):.2f}x")
        for name, why in self.skipped:
            table.add_row(name, "", "", f"[dim]left as it is: {why}[/]")
        for e in self.examples:
            table.add_row(
                "[bold]the model[/]", e.text, "", "", "", f"{e.before_us:,.0f}", f"{e.us:,.0f}", f"{e.gain:.2f}x"
            )
        return table

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=120)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()
