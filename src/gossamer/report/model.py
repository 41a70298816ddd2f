"""The contents of a report, as plain data: print it, read it, or save it as a page."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.native import Ceilings
from gossamer.report import charts, kinds
from gossamer.report.layers import LayerFacts
from gossamer.report.page import Column, Html, Page, Section, group, table, tiles
from gossamer.report.whole import Whole, shown

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ModelReport:
    """The result of :func:`gossamer.report`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> found = gs.report(gs.sparsify_(torch.nn.Linear(64, 64), "2:4"), None, tokens=[1])
    >>> [(x.name, x.pattern, x.sparsity) for x in found.layers], found.tokens
    ([('weight', '2:4', 0.5)], ('1 token',))
    """

    title: str
    machine: str
    layers: tuple[LayerFacts, ...]
    ceilings: Ceilings | None = None
    points: tuple[tuple[str, float, float], ...] = ()
    """Name, sparsity and accuracy."""
    curves: Mapping[str, Mapping[str, charts.Curve]] = field(default_factory=dict)
    """By quantity and series: (step, value)."""
    training: tuple[dict[str, Any], ...] = ()
    """One row a layer and method: density, churn, ablated neurons, explored positions."""
    whole: tuple[Whole, ...] = ()
    """Calls of whole models, dense and as they are, if there was an example."""

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models; a single model has no name."""
        return tuple(dict.fromkeys(x.model for x in self.layers))

    @property
    def tokens(self) -> tuple[str, ...]:
        """What was measured: ``"1 token"``, ``"256 tokens"``, ``"the example"``."""
        return tuple(dict.fromkeys(t.case for x in self.layers for t in x.times))

    def sparsity(self, model: str = "") -> float:
        """Share of zeros in the layers of a model."""
        mine = [x for x in self.layers if x.model == model]
        return sum(x.sparsity * x.size for x in mine) / max(sum(x.size for x in mine), 1)

    def gain(self, case: str, model: str = "") -> float | None:
        """Dense time divided by actual time, for all layers of a model together, for one of ``tokens``."""
        mine = [t for x in self.layers if x.model == model for t in x.times if t.case == case]
        return sum(t.dense_us for t in mine) / sum(t.us for t in mine) if mine else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the pictures as plain values, ready for JSON."""
        layers = []
        for x in self.layers:
            row = {k: v for k, v in asdict(x).items() if k != "mask"}
            layers.append(row | {"shape": list(x.shape), "times": [asdict(t) | {"gain": t.gain} for t in x.times]})
        return {
            "title": self.title,
            "machine": self.machine,
            "sparsity": {m: self.sparsity(m) for m in self.models},
            "layers": layers,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "accuracy": [{"name": n, "sparsity": s, "accuracy": a} for n, s, a in self.points],
            "curves": {k: {n: [list(p) for p in c] for n, c in v.items()} for k, v in self.curves.items()},
            "training": list(self.training),
            "whole": [asdict(x) | {"gain": x.gain} for x in self.whole],
        }

    def page(self, *first: Section) -> Page:
        """Return the page; `first` are your own sections, shown first."""
        sections = [*first]
        if len(self.whole) > 1:
            sections.append(Section("Whole models", _ABOUT_WHOLE, shown(self.whole)))
        if len(self.layers) > FEW:
            about = (_SUMS if self.tokens else "") + _ABOUT_GROUPS
            sections.append(Section("Groups of layers", about, kinds.overview(self.layers, self.tokens)))
        sections.append(Section("Layers", (_COMPARED if self.tokens else "") + _ABOUT_LAYERS, self._layers()))
        if any(x.sparsity > 0 for x in self.layers):
            sections.append(Section("Sparsity by layer", "", charts.sparsity(self.layers, self.models)))
        if any(x.mask for x in self.layers):
            sections.append(Section("Masks", _ABOUT_MASKS, charts.masks(self.layers)))
        if self.ceilings is not None and self.tokens:
            drawn = group([charts.roofline(self.layers, self.models, self.ceilings)])
            sections.append(Section("Roofline", _ABOUT_ROOFLINE, drawn))
        if self.curves or self.training:
            rows = _training(self.training) if self.training else Html("")
            about = _ABOUT_TRAINING if self.training else ""
            sections.append(Section("Training", about, Html(group(charts.curves(self.curves)) + rows)))
        if self.points:
            sections.append(Section("Accuracy against sparsity", "", group([charts.accuracy(self.points)])))
        return Page(self.title, self.machine, tuple(sections), Html("") if first else self._tiles())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page."""
        return self.page().save(path)

    def _tiles(self) -> Html:
        figures = [(f"{x.gain:.2f}x", x.text) for x in self.whole[:MOST_TILES]]
        for model in self.models if len(self.models) > 1 and not self.whole else ():
            for case in self.tokens[:1]:
                figures.append((f"{self.gain(case, model) or 1:.2f}x", f"{model}: layers against dense, {case}"))
        if len(self.models) == 1:
            for case in self.tokens:
                figures.append((f"{self.gain(case, self.models[0]):.2f}x", f"layers against dense, {case}"))
            figures.append((f"{self.sparsity(self.models[0]):.1%}", "of the layers' values are zero"))
            now, then = (sum(getattr(x, k) for x in self.layers) for k in ("bytes", "dense_bytes"))
            figures.append((_bytes(now), f"stored; dense: {_bytes(then)}"))
        if len(self.points) == 1:
            figures.append((f"{self.points[0][2]:.4g}", "accuracy"))
        return tiles(figures) if figures else Html("")

    def _columns(self) -> list[str]:
        """Titles of the columns of times: gains first."""
        gains = [f"{case}: gain" for case in self.tokens]
        return gains + [f"{case}: {what}" for case in self.tokens for what in ("dense us", "us")]

    def _row(self, x: LayerFacts) -> list[Any]:
        found = [next((t for t in x.times if t.case == case), None) for case in self.tokens]
        times = [value for t in found for value in ((None, None) if t is None else (t.dense_us, t.us))]
        return [None if t is None else t.gain for t in found] + times

    def _layers(self) -> Html:
        several = len(self.models) > 1
        columns = [Column("layer", kind="code"), *([Column("model", kind="")] if several else [])]
        count = len(self.tokens)
        columns += [Column(title, "{:.2f}x".format, tone=_tone) for title in self._columns()[:count]]
        columns += [Column("sparsity", "{:.1%}".format), Column("format", kind="code"), Column("pattern", kind="code")]
        columns += [Column("shape", kind="code"), Column("bytes", _bytes), Column("of dense", "{:.2f}x".format)]
        columns += [Column(title, "{:,.1f}".format) for title in self._columns()[count:]]
        columns += [Column("kernel", kind="code"), Column("why", kind="text")]
        rows = []
        for x in self.layers:
            times, format = self._row(x), x.format.removesuffix("()")
            name = [x.name, *([x.model] if several else []), *times[:count]]
            size = [" x ".join(map(str, x.shape)), x.bytes, x.bytes / max(x.dense_bytes, 1)]
            rows.append([*name, x.sparsity, format, x.pattern, *size, *times[count:], x.kernel, x.why])
        return table(columns, rows)

    def table(self) -> Table:
        """Return the layers as a rich table."""
        from rich.table import Table

        out = Table(title=f"{self.title}: {self.machine}", title_justify="left")
        several = len(self.models) > 1
        for column in (*(["model"] if several else []), "layer", "shape", "pattern", "format"):
            out.add_column(column, overflow="fold" if column == "layer" else "ellipsis")  # names are complete
        for column in ("sparsity", "bytes", *self._columns()):
            out.add_column(column, justify="right")
        for x in self.layers:
            gains = len(self.tokens)
            times = [
                "–" if v is None else f"{v:,.2f}x" if i < gains else f"{v:,.0f}" for i, v in enumerate(self._row(x))
            ]
            shape = " x ".join(map(str, x.shape))
            cells = [x.name, shape, x.pattern, x.format.removesuffix("()"), f"{x.sparsity:.1%}", _bytes(x.bytes)]
            out.add_row(*([x.model] if several else []), *cells, *times)
        return out

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=140, force_jupyter=False)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


FEW = 12  # layers, above which there is a table of their groups
MOST_TILES = 8
_ABOUT_WHOLE = "A call of each model compared with a dense copy. The runs alternate, and the fastest of each counts."
_SUMS = "The times of the layers of a group are added up. "
_ABOUT_GROUPS = "Click a row to see its layers."
_COMPARED = "Each layer compared with the same layer as dense. The runs alternate, and the fastest of each counts. "
_ABOUT_LAYERS = "Click a column title to sort."
_ABOUT_MASKS = "Kept values are coloured. Left: a corner, value by value. Right: the density of the whole mask."
_ABOUT_ROOFLINE = (
    "The lines are the limits of this machine, measured for this page; a point can't be above them. "
    "A sparse layer does fewer operations and reads fewer bytes, so it can be faster even if its point is lower."
)
_ABOUT_TRAINING = (
    "Churn: the share of a layer's kept positions that are new after an update. Explored: the share of all positions "
    "that have ever been kept."
)


def _tone(gain: float) -> str:
    return "good" if gain > 1.03 else "bad" * (gain < 0.97)


def _training(rows: tuple[dict[str, Any], ...]) -> Html:
    percent = "{:.1%}".format
    columns = [Column("layer", kind="code"), Column("method", kind="")]
    columns += [Column("density", percent), Column("churn, last", percent), Column("neurons", str)]
    columns += [Column("ablated", str), Column("fan-in", str), Column("explored", percent)]
    keys = ("layer", "method", "density", "churn", "neurons", "ablated", "fan_in", "explored")
    return table(columns, [[row.get(key) for key in keys] for row in rows])


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
