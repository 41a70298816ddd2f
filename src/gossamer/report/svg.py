"""Plots as SVG, written by hand: axes, lines, points, bars. Colours are classes, so that the page's style decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from gossamer.report.page import Html

WIDTH, HEIGHT = 380, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 22, 12, 42
LONGEST = 58  # letters of a name above a bar; the end of a longer one is shown


@dataclass(frozen=True)
class Axis:
    """Numbers along a side of a plot.

    Examples
    --------
    >>> Axis("tokens", 1, 100, log=True).at(10)
    0.5
    >>> Axis("loss", 0, 1.9).ticks()
    [0.0, 0.5, 1.0, 1.5]
    """

    title: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def at(self, value: float) -> float:
        """Return where a value lies between both ends, from 0 to 1."""
        if self.log:
            low, high, value = math.log10(self.low), math.log10(self.high), math.log10(max(value, 1e-300))
        else:
            low, high = self.low, self.high
        return min(max((value - low) / (high - low), 0.0), 1.0)

    def ticks(self) -> list[float]:
        """Return round numbers within the axis, four or so."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first + 1) / 6))
            return [10.0**e for e in range(first, last + 1, step)]
        raw = (self.high - self.low) / 4
        base = 10 ** math.floor(math.log10(raw))
        step_ = min((base * k for k in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - raw))
        first = math.ceil(self.low / step_ - 1e-9)
        return [n * step_ for n in range(first, math.floor(self.high / step_ + 1e-9) + 1)]

    def show(self, value: float) -> str:
        """Return a tick's text."""
        if self.percent:
            return f"{100 * value:.3g} %"
        return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:g}"


def spanning(title: str, values: Iterable[float], *, log: bool = False, percent: bool = False) -> Axis:
    """Return an axis that holds all values, with some room around them.

    Examples
    --------
    >>> spanning("tokens", [1.0, 256.0], log=True)
    Axis(title='tokens', low=0.5, high=512.0, log=True, percent=False)
    """
    found = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.1, 1.0]
    low, high = min(found), max(found)
    if log:
        return Axis(title, low / 2, high * 2, True, percent)
    room = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return Axis(title, low - room if low < 0 or low > 0.3 * high else 0.0, high + room, False, percent)


@dataclass
class Plot:
    """A plot that is filled part by part.

    Examples
    --------
    >>> plot = Plot(Axis("step", 0, 10), Axis("loss", 0, 1))
    >>> plot.line([(0, 1.0), (10, 0.5)], 0)
    >>> plot.svg("loss by step").startswith('<svg viewBox="0 0 380 260" role="img" aria-label="loss by step">')
    True
    """

    x: Axis
    y: Axis
    parts: list[str] = field(default_factory=list)

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return a point in the drawing's own numbers."""
        across = LEFT + self.x.at(x) * (WIDTH - LEFT - RIGHT)
        return round(across, 1), round(HEIGHT - BOTTOM - self.y.at(y) * (HEIGHT - TOP - BOTTOM), 1)

    def line(self, points: Sequence[tuple[float, float]], color: int, kind: str = "series s") -> None:
        """Add a line through points; NaN and infinity are left out."""
        real = [p for p in points if math.isfinite(p[0]) and math.isfinite(p[1])]
        if len(real) == 1:
            self.point(*real[0], color)
        elif real:
            path = "L".join("{:g} {:g}".format(*self.place(*p)) for p in real)
            self.parts.append(f'<path class="{kind} k{color % 6}" d="M{path}"/>')

    def point(self, x: float, y: float, color: int, title: str = "", label: str = "", hollow: bool = False) -> None:
        """Add a point; `title` shows when one points at it, `label` always."""
        px, py = self.place(x, y)
        kind = "hollow" if hollow else "f"
        tip = f"<title>{escape(title)}</title>" if title else ""
        self.parts.append(f'<circle class="{kind} k{color % 6}" cx="{px:g}" cy="{py:g}" r="4.5">{tip}</circle>')
        if label:
            right = px > WIDTH * 0.6
            anchor, shift = ("end", -9) if right else ("start", 9)
            self.text(px + shift, py + 4, label, anchor)

    def text(self, x: float, y: float, text: str, anchor: str = "start") -> None:
        """Add words at a place of the drawing."""
        self.parts.append(f'<text class="label" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self, label: str) -> Html:
        """Return the drawing; `label` is what a screen reader says."""
        out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">']
        bottom, left = HEIGHT - BOTTOM, LEFT
        for value in self.y.ticks():
            y = self.place(self.x.low, value)[1]
            out.append(f'<path class="grid" d="M{left} {y:g}H{WIDTH - RIGHT}"/>')
            out.append(f'<text x="{left - 6}" y="{y + 4:g}" text-anchor="end">{self.y.show(value)}</text>')
        for value in self.x.ticks():
            x = self.place(value, self.y.low)[0]
            out.append(f'<path class="axis" d="M{x:g} {bottom}v4"/>')
            out.append(f'<text x="{x:g}" y="{bottom + 17}" text-anchor="middle">{self.x.show(value)}</text>')
        out.append(f'<path class="axis" d="M{left} {bottom}H{WIDTH - RIGHT}"/>')
        middle = (TOP + bottom) / 2
        centre = (left + WIDTH - RIGHT) / 2
        out.append(f'<text x="{centre:g}" y="{HEIGHT - 6}" text-anchor="middle">{escape(self.x.title)}</text>')
        turn = f'transform="rotate(-90 11 {middle:g})"'
        out.append(f'<text x="11" y="{middle:g}" text-anchor="middle" {turn}>{escape(self.y.title)}</text>')
        return Html("\n".join([*out, *self.parts, "</svg>"]))


def bars(rows: Sequence[tuple[str, float, int]], label: str) -> Html:
    """Return one bar for each (name, share from 0 to 1, colour).

    Examples
    --------
    >>> bars([("fc", 0.9, 0)], "sparsity").count("<rect")
    2
    """
    step, width = 34, WIDTH - 56
    out = [f'<svg viewBox="0 0 {WIDTH} {step * len(rows) + 6}" role="img" aria-label="{escape(label)}">']
    for i, (name, share, color) in enumerate(rows):
        y, length = step * i + 4, max(0.0, min(share, 1.0)) * width
        short = name if len(name) <= LONGEST else "…" + name[1 - LONGEST :]
        out.append(
            f'<text class="label" x="0" y="{y + 9}">{escape(short)}<title>{escape(name)}</title></text>'
            f'<rect class="track" x="0" y="{y + 14}" width="{width}" height="10" rx="3"/>'
            f'<rect class="f k{color % 6}" x="0" y="{y + 14}" width="{length:.1f}" height="10" rx="3"/>'
            f'<text x="{width + 5}" y="{y + 23}">{100 * share:.1f} %</text>'
        )
    return Html("\n".join([*out, "</svg>"]))
