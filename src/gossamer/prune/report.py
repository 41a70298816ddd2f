"""The result of a pruning run: a table to print, a dictionary to save."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gossamer.methods import Layer, Left, taken_and_left


@dataclass(frozen=True)
class LayerReport:
    """One pruned weight.

    Examples
    --------
    >>> LayerReport("fc.weight", (8, 8), "2:4", 0.5, 0.91, error=0.02)
    LayerReport(name='fc.weight', shape=(8, 8), pattern='2:4', sparsity=0.5, kept_energy=0.91, error=0.02, ...)
    """

    name: str
    """Name of the parameter."""
    shape: tuple[int, ...]
    pattern: str
    sparsity: float
    kept_energy: float
    """Share of the sum of squares of the dense weight at the positions that are kept."""
    error: float | None = None
    """|(new - dense) X|^2 / |dense X|^2 on the calibration inputs; None without any. Of parts, the mean."""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    """What was out of the ordinary: damping that was raised, a layer that no input reached."""


@dataclass(frozen=True)
class Report:
    """The result of :func:`gossamer.prune.oneshot` and :func:`gossamer.prune.gradual`: print it, or read ``layers``.

    Examples
    --------
    >>> report = Report("magnitude", (LayerReport("fc.weight", (8, 8), "2:4", 0.5, 0.91),), before=0.9, after=0.8)
    >>> report.sparsity, report.to_dict()["after"]
    (0.5, 0.8)
    >>> report = Report("magnitude", report.layers, left=(Left("fc.bias", 8, "vectors"),))
    >>> report.taken
    '1 sparse weight, 88.9 % of all parameters; dense: 11.1 % vectors'
    >>> report.sparsity, report.sparsity_of_taken
    (0.4444444444444444, 0.5)
    """

    method: str
    layers: tuple[LayerReport, ...]
    before: float | None = None
    """The metric before, where one was given."""
    after: float | None = None
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    history: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    """For gradual pruning: one entry for each time that something was pruned."""
    left: tuple[Left, ...] = ()
    """The parameters of the model that were not pruned, and why."""

    @property
    def sparsity(self) -> float:
        """Share of all parameters of the model that this run has removed."""
        return self._removed / max(self._size + sum(one.size for one in self.left), 1)

    @property
    def sparsity_of_taken(self) -> float:
        """Share of the pruned weights' values that was removed."""
        return self._removed / max(self._size, 1)

    @property
    def taken(self) -> str:
        """One line: how much of the model is sparse, and why the rest is dense."""
        return taken_and_left(len(self.layers), self._size, self.left)

    @property
    def _size(self) -> int:
        return sum(prod(layer.shape) for layer in self.layers)

    @property
    def _removed(self) -> float:
        return sum(layer.sparsity * prod(layer.shape) for layer in self.layers)

    @property
    def error(self) -> float | None:
        """Mean of the layers' errors; None without calibration."""
        errors = [layer.error for layer in self.layers if layer.error is not None]
        return sum(errors) / len(errors) if errors else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, ready for JSON."""
        return {**_plain(asdict(self)), "sparsity": self.sparsity, "error": self.error}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Return the report from the plain values of :meth:`to_dict`."""
        layers = tuple(layer_from_dict(layer) for layer in data["layers"])
        left = tuple(Left(**one) for one in data.get("left", ()))
        rest = {k: v for k, v in data.items() if k not in ("layers", "left", "sparsity", "error")}
        return cls(layers=layers, left=left, **_tuples(rest))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, or, if the path ends in ``.html``, as a self-contained page."""
        from gossamer.report.page import write_whole
        from gossamer.report.pruning import page

        html = Path(path).suffix == ".html"
        write_whole(path, page(self).html() if html else json.dumps(self.to_dict(), indent=2) + "\n")

    def __str__(self) -> str:
        console = Console(width=140, record=True, file=io.StringIO())
        console.print(self.table())
        return f"{console.export_text().rstrip()}\n{self.taken}"

    def table(self) -> Table:
        """Return the report as a rich table."""
        table = Table()
        table.add_column("weight", overflow="fold")  # names are complete, on two lines if they are long
        table.add_column("shape")
        table.add_column("pattern")
        for column in ("sparsity", "kept energy", "error", "s"):
            table.add_column(column, justify="right")
        table.add_column("notes")
        for x in self.layers:
            shape, notes = " x ".join(map(str, x.shape)), "; ".join(x.notes)
            figures = (f"{x.sparsity:.1%}", f"{x.kept_energy:.1%}", _error(x.error), f"{x.seconds:.2f}")
            table.add_row(x.name, shape, x.pattern, *figures, notes)
        table.add_section()
        metric = "" if self.after is None else f"metric {_number(self.before)} -> {_number(self.after)}"
        figures = (f"{self.sparsity:.1%}", "", _error(self.error), f"{self.seconds:.2f}")
        notes = "; ".join((*filter(None, [metric]), *self.notes))
        table.add_row(f"the model, by {self.method}", "", "", *figures, notes)
        return table


def merged(rows: Sequence[tuple[Layer, LayerReport]]) -> tuple[LayerReport, ...]:
    """One row for each parameter, from those of its parts."""
    teams: dict[str, list[tuple[Layer, LayerReport]]] = {}
    for layer, row in rows:
        teams.setdefault(layer.parameter_name, []).append((layer, row))
    return tuple(_merge(name, team) for name, team in teams.items())


def _merge(name: str, team: list[tuple[Layer, LayerReport]]) -> LayerReport:
    parts = [row for _, row in team]
    sizes = [prod(row.shape) for row in parts]

    def mean(values: list[float]) -> float:
        return sum(v * n for v, n in zip(values, sizes, strict=True)) / max(sum(sizes), 1)

    errors = [row.error for row in parts if row.error is not None]
    return LayerReport(
        name,
        tuple(team[0][0].source.shape),
        parts[0].pattern,
        mean([row.sparsity for row in parts]),
        mean([row.kept_energy for row in parts]),
        sum(errors) / len(errors) if errors else None,
        sum(row.seconds for row in parts),
        tuple(dict.fromkeys(note for row in parts for note in row.notes)),
    )


def layer_from_dict(data: dict[str, Any]) -> LayerReport:
    """Return one layer's report from its plain values."""
    return LayerReport(**_tuples(data))


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}" if value < 1e-3 else f"{value:.4f}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
