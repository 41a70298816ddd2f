"""What a report says, as plain data: print it, read it, or save it as a page."""

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

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ModelReport:
    """What :func:`gossamer.report` found.

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

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models; one without a name if there is but one."""
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
        """Dense time over time of all layers of a model together, for one of ``tokens``."""
        mine = [t for x in self.layers if x.model == model for t in x.times if t.case == case]
        return sum(t.dense_us for t in mine) / sum(t.us for t in mine) if mine else None

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the pictures as plain values, ready for JSON."""
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
        }

    def page(self, *first: Section) -> Page:
        """Return the page; sections of your own come `first`."""
        sections = [*first]
        if len(self.layers) > FEW:
            by_kind = kinds.overview(self.layers, self.tokens, len(self.models) > 1)
            sections.append(Section("Kinds of layers", _ABOUT_KINDS, by_kind))
        sections.append(Section("Layers", _ABOUT_LAYERS, self._layers()))
        if any(x.sparsity > 0 for x in self.layers):
            sections.append(Section("Sparsity by layer", "", charts.sparsity(self.layers, self.models)))
        if any(x.mask for x in self.layers):
            sections.append(Section("Masks", _ABOUT_MASKS, charts.masks(self.layers)))
        if self.ceilings is not None and self.tokens:
            drawn = group([charts.roofline(self.layers, self.models, self.ceilings)])
            sections.append(Section("Roofline", _ABOUT_ROOFLINE, drawn))
        if self.curves or self.training:
            rows = _training(self.training) if self.training else Html("")
            sections.append(Section("Training", _ABOUT_TRAINING, Html(group(charts.curves(self.curves)) + rows)))
        if self.points:
            sections.append(Section("Accuracy against sparsity", "", group([charts.accuracy(self.points)])))
        return Page(self.title, self.machine, tuple(sections), self._tiles())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page."""
        return self.page().save(path)

    def _tiles(self) -> Html:
        figures = []
        for model in self.models[:1] if len(self.models) == 1 else ():
            mine = [x for x in self.layers if x.model == model]
            for case in self.tokens:
                figures.append((f"{self.gain(case, model):.2f}x", f"layers against dense, {case}"))
            figures.append((f"{self.sparsity(model):.1%}", "of the layers' values are zero"))
            now, then = (sum(getattr(x, k) for x in mine) for k in ("bytes", "dense_bytes"))
            figures.append((_bytes(now), f"of {_bytes(then)} dense"))
        if len(self.points) == 1:
            figures.append((f"{self.points[0][2]:.4g}", "accuracy"))
        return tiles(figures) if figures else Html("")

    def _columns(self) -> list[str]:
        return [f"{case}: {what}" for case in self.tokens for what in ("dense us", "us", "gain")]

    def _row(self, x: LayerFacts) -> list[Any]:
        times: list[float | None] = []
        for case in self.tokens:
            found = next((t for t in x.times if t.case == case), None)
            times += [None, None, None] if found is None else [found.dense_us, found.us, found.gain]
        return times

    def _layers(self) -> Html:
        several = len(self.models) > 1
        columns = [Column("layer", kind="code"), *([Column("model", kind="")] if several else [])]
        columns += [Column("shape", kind="code"), Column("pattern", kind="code"), Column("format", kind="code")]
        columns += [Column("sparsity", "{:.1%}".format), Column("bytes", _bytes), Column("of dense", "{:.2f}x".format)]
        for title in self._columns():
            if title.endswith("gain"):
                columns.append(
                    Column(title, "{:.2f}x".format, tone=lambda v: "good" if v > 1.03 else "bad" * (v < 0.97))
                )
            else:
                columns.append(Column(title, "{:,.1f}".format))
        columns += [Column("kernel", kind="code"), Column("why", kind="text")]
        rows = []
        for x in self.layers:
            shape = " x ".join(map(str, x.shape))
            what = [x.name, *([x.model] if several else []), shape, x.pattern, x.format.removesuffix("()")]
            share = x.bytes / max(x.dense_bytes, 1)
            rows.append([*what, x.sparsity, x.bytes, share, *self._row(x), x.kernel, x.why])
        return table(columns, rows)

    def table(self) -> Table:
        """Return the layers as a rich table."""
        from rich.table import Table

        out = Table(title=f"{self.title}: {self.machine}", title_justify="left")
        several = len(self.models) > 1
        for column in (*(["model"] if several else []), "layer", "shape", "pattern", "format"):
            out.add_column(column)
        for column in ("sparsity", "bytes", *self._columns()):
            out.add_column(column, justify="right")
        for x in self.layers:
            times = [
                "–" if v is None else f"{v:,.2f}x" if i % 3 == 2 else f"{v:,.0f}" for i, v in enumerate(self._row(x))
            ]
            shape = " x ".join(map(str, x.shape))
            cells = [x.name, shape, x.pattern, x.format.removesuffix("()"), f"{x.sparsity:.1%}", _bytes(x.bytes)]
            out.add_row(*([x.model] if several else []), *cells, *times)
        return out

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=140)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


FEW = 12  # layers, above which there is a table of their kinds
_ABOUT_KINDS = "Layers whose names differ in numbers only, together: times are added up. Click on a row to open it."
_ABOUT_LAYERS = (
    "Each layer as it is against the same layer dense, run in turns in this process; the fastest run of each counts. "
    "Click on a column's title to sort."
)
_ABOUT_MASKS = "Coloured: kept. Each first corner is drawn value by value; each whole mask by how full its parts are."
_ABOUT_ROOFLINE = (
    "What the cores can do at most was measured on this machine for this page. A point on a line can't be faster; "
    "doing fewer operations and reading fewer bytes is how a sparse layer still beats a dense one that lies higher."
)
_ABOUT_TRAINING = (
    "Churn: share of a layer's kept positions that are new after an update. Explored: share of all positions that "
    "were kept at some time."
)


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
