"""The pictures of a report: sparsity by layer, masks, roofline, curves, churn, accuracy against sparsity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gossamer.native import Ceilings
from gossamer.report.layers import LayerFacts
from gossamer.report.page import Html, figure, group
from gossamer.report.svg import Axis, Plot, bars, spanning

Curve = Sequence[tuple[float, float]]
MOST_BARS, MOST_MASKS = 60, 16


def sparsity(layers: Sequence[LayerFacts], models: Sequence[str]) -> Html:
    """Bars for each model's layers."""
    made = []
    for number, model in enumerate(models):
        mine = [x for x in layers if x.model == model]
        rows = [(x.name, x.sparsity, number) for x in mine[:MOST_BARS]]
        left = f"{len(mine) - MOST_BARS} more are in the table" if len(mine) > MOST_BARS else ""
        made.append(figure(model or "share of zeros", bars(rows, f"sparsity by layer {model}"), left))
    return group(made)


def masks(layers: Sequence[LayerFacts]) -> Html:
    """The corner and the density of each mask, the largest weights first."""
    drawn = sorted((x for x in layers if x.mask is not None), key=lambda x: -x.size)
    first, more = drawn[:MOST_MASKS], drawn[MOST_MASKS:]
    shown = group([_mask(x, *x.mask.svgs()) for x in first if x.mask is not None], "masks")
    if not more:
        return shown
    rest = group([_mask(x, *x.mask.canvases()) for x in more if x.mask is not None], "masks")
    words = f"{len(more)} more mask{'s' * (len(more) > 1)} of smaller weights"
    return Html(f'{shown}<details class="more"><summary>{words}</summary>{rest}</details>')


def _mask(x: LayerFacts, corner: Html, whole: Html) -> Html:
    assert x.mask is not None
    pair = Html(f'<div class="pair"><div>{corner}</div><div>{whole}</div></div>')
    rows, columns = x.mask.shape
    caption = f"{x.pattern}, {x.sparsity:.1%} sparse. Left: a corner. Right: the density of all {rows:,} x {columns:,}"
    return figure(f"{x.model} {x.name}".strip(), pair, caption)


def roofline(layers: Sequence[LayerFacts], models: Sequence[str], top: Ceilings) -> Html:
    """GFLOP/s by operations per byte, below the limits of the machine; hollow: the same layer dense."""
    points = []
    for x in layers:
        for t in x.times:
            title = f"{x.model} {x.name}, {t.case}".strip()
            color = models.index(x.model)
            points.append((x.intensity(t.tokens), x.flops(t.tokens) / t.us / 1e3, color, title, False))
            if x.format != "Dense()":
                speed = x.flops(t.tokens, dense=True) / t.dense_us / 1e3
                points.append((x.intensity(t.tokens, dense=True), speed, color, f"{title}, dense", True))
    ridge = top.gflops / top.memory_gbytes
    plot = Plot(
        spanning("operations per byte", [p[0] for p in points] + [ridge], log=True),
        spanning("GFLOP/s", [p[1] for p in points] + [top.gflops], log=True),
    )
    for gbytes, words in ((top.memory_gbytes, "memory"), (top.cache_gbytes, "8 MB cache")):
        bend = top.gflops / gbytes
        first = max(plot.x.low, plot.y.low / gbytes)
        plot.line([(first, first * gbytes), (bend, top.gflops)], 5, "roof" + " dash" * (words == "memory"))
    plot.line([(top.gflops / top.cache_gbytes, top.gflops), (plot.x.high, top.gflops)], 5, "roof")
    for each, speed, color, title, hollow in points:
        plot.point(
            each, speed, color, f"{title}: {speed:,.1f} GFLOP/s at {each:.2f} operations per byte", hollow=hollow
        )
    caption = (
        f"Lines: {top.gflops:,.0f} GFLOP/s, {top.cache_gbytes:,.0f} GB/s from an 8 MB cache, and (dashed) "
        f"{top.memory_gbytes:,.0f} GB/s from memory. Each point is a layer at one number of tokens; hollow: as dense."
    )
    return figure("Roofline", plot.svg("roofline"), caption, [m for m in models if m] if len(models) > 1 else ())


def curves(named: Mapping[str, Mapping[str, Curve]]) -> list[Html]:
    """One plot for each quantity, a line for each of its series."""
    made = []
    for what, lines in named.items():
        values = [v for line in lines.values() for _, v in line]
        percent = bool(values) and what.lower() in ("accuracy", "churn", "density", "sparsity", "explored")
        plot = Plot(
            spanning("step", [s for line in lines.values() for s, _ in line]), spanning(what, values, percent=percent)
        )
        for number, line in enumerate(lines.values()):
            plot.line(line, number)
        made.append(figure(what, plot.svg(f"{what} by step"), "", list(lines) if len(lines) > 1 else ()))
    return made


def accuracy(points: Sequence[tuple[str, float, float]]) -> Html:
    """Accuracy against sparsity: a named point each."""
    low = min(p[1] for p in points)
    x = Axis("sparsity", 0.0 if low < 0.5 else max(low - 0.1, 0.0), 1.0, percent=True)
    percent = all(0 <= p[2] <= 1 for p in points)
    plot = Plot(x, spanning("accuracy" if percent else "metric", [p[2] for p in points], percent=percent))
    names = list(dict.fromkeys(p[0] for p in points))
    for name, s, a in points:
        shown = f"{a:.2%}" if percent else f"{a:.4g}"
        plot.point(s, a, names.index(name), f"{name}: {shown} at {s:.1%} sparsity")
    return figure("Accuracy against sparsity", plot.svg("accuracy against sparsity"), "", names)
