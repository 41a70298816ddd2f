"""The page of a pruning run: the error of each layer, and the metric."""

from __future__ import annotations

from typing import Any, Protocol

from gossamer.report import charts
from gossamer.report.page import Column, Html, Page, Section, figure, group, table, tiles
from gossamer.report.svg import Plot, bars, spanning


class Pruned(Protocol):
    """The part of a ``gossamer.prune`` report that is used here (a higher package)."""

    @property
    def method(self) -> str: ...
    @property
    def layers(self) -> tuple[Any, ...]: ...
    @property
    def before(self) -> float | None: ...
    @property
    def after(self) -> float | None: ...
    @property
    def seconds(self) -> float: ...
    @property
    def notes(self) -> tuple[str, ...]: ...
    @property
    def history(self) -> tuple[dict[str, Any], ...]: ...
    @property
    def sparsity(self) -> float: ...
    @property
    def taken(self) -> str: ...
    @property
    def error(self) -> float | None: ...


def page(run: Pruned) -> Page:
    """Return the page of a pruning run."""
    figures = [(f"{run.sparsity:.1%}", "of the model's values were removed"), (f"{run.seconds:.1f} s", "it took")]
    if run.error is not None:
        figures.append((_error(run.error), "mean error of the layers' outputs"))
    sections = [Section("Layers", _ABOUT, _layers(run)), Section("Sparsity by layer", "", _sparsity(run))]
    errors = [(x.name, x.error) for x in run.layers if x.error]
    if len(errors) > 1:
        sections.append(Section("Error by layer", "In the order of the model.", _errors(errors)))
    if run.history:
        sections.append(Section("On the way", "One row each time that something was pruned.", _history(run)))
    metric = [] if run.after is None else [f"metric {_number(run.before)} -> {_number(run.after)}"]
    text = "; ".join([*metric, *run.notes, run.taken])
    return Page(f"Pruned by {run.method}", text, tuple(sections), tiles(figures))


_ABOUT = (
    "Kept energy: share of the dense weight's sum of squares where values stayed. Error: how far the layer's outputs "
    "on the calibration inputs moved, squared and relative. Click on a column's title to sort."
)


def _layers(run: Pruned) -> Html:
    columns = [Column("weight", kind="code"), Column("shape", kind="code"), Column("pattern", kind="code")]
    columns += [Column("sparsity", "{:.1%}".format), Column("kept energy", "{:.1%}".format), Column("error", _error)]
    columns += [Column("seconds", "{:.2f}".format), Column("notes", kind="text")]
    rows = []
    for x in run.layers:
        figures = (x.sparsity, x.kept_energy, x.error, x.seconds)
        rows.append((x.name, " x ".join(map(str, x.shape)), x.pattern, *figures, "; ".join(x.notes)))
    return table(columns, rows)


def _sparsity(run: Pruned) -> Html:
    rows = [(x.name, x.sparsity, 0) for x in run.layers[: charts.MOST_BARS]]
    return group([figure("share of zeros", bars(rows, "sparsity by layer"))])


def _errors(errors: list[tuple[str, float]]) -> Html:
    plot = Plot(spanning("layer", [0, len(errors) - 1]), spanning("error", [e for _, e in errors], log=True))
    for i, (name, error) in enumerate(errors):
        plot.point(i, error, 0, f"{name}: {_error(error)}")
    return group([figure("error", plot.svg("error by layer"))])


def _history(run: Pruned) -> Html:
    columns = [Column("stage", str), Column("patterns", kind="code"), Column("sparsity", "{:.1%}".format)]
    columns += [Column("error", _error), Column("metric, pruned", _number), Column("training steps", str)]
    columns += [Column("loss, mean", _number), Column("metric, trained", _number)]
    keys = ("stage", "patterns", "sparsity", "error", "pruned", "steps", "loss", "trained")
    rows = [[" ".join(h[key]) if key == "patterns" else h.get(key) for key in keys] for h in run.history]
    points = [("dense", 0.0, run.before)] if run.before is not None else []
    done = [h for h in run.history if h.get("trained") is not None]
    points += [(f"stage {h['stage']}", h["sparsity"], h["trained"]) for h in done]
    drawn = group([charts.accuracy(points)]) if len(points) > 1 else ""
    return Html(table(columns, rows) + drawn)


def _error(value: float) -> str:
    return f"{value:.2e}" if value < 1e-3 else f"{value:.4f}"


def _number(value: float | None) -> str:
    return "?" if value is None else f"{value:.4g}"
