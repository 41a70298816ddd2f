"""The plot of the docs, from the runs of benchmarks/training.py; needs nothing but Python.

python benchmarks/training_plot.py benchmarks/results/training.json docs/how-to/training.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.training_tables import ORDER, SPARSITIES, summary

COLOURS = dict(zip(ORDER, ("#666", "#999", "#2a9d8f", "#457b9d", "#d62828", "#f4a261"), strict=True))
WIDTH, HEIGHT, LEFT, TOP, GAP = 250, 190, 44, 44, 40


def panel(task: str, rows: list[dict[str, Any]], x0: float) -> list[str]:
    """One task: accuracy by sparsity, a line a method, a bar a deviation; dense is a level."""
    mine = {(r["method"], r["sparsity"]): r for r in rows}
    dense = mine["dense", 0.0]["mean"]
    shown = [r for r in mine.values() if r["mean"] > dense - 16]
    low = min(r["mean"] - r["deviation"] for r in shown) - 0.3
    high = max(r["mean"] + r["deviation"] for r in shown) + 0.3

    def at(index: float, accuracy: float) -> tuple[float, float]:
        y = TOP + HEIGHT * (1 - (max(accuracy, low) - low) / (high - low))
        return x0 + WIDTH * (index + 0.3) / (len(SPARSITIES) - 0.4), y

    out = [_text(x0 + WIDTH / 2, TOP - 12, task, "middle", 13)]
    out.append(f'<rect x="{x0}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>')
    step = next(s for s in (0.5, 1, 2, 5) if (high - low) / s < 7)
    tick = step * (int(low / step) + 1)
    while tick < high:
        y = at(0, tick)[1]
        out.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#eee"/>')
        out.append(_text(x0 - 5, y + 4, f"{tick:g}", "end"))
        tick += step
    out += [_text(at(i, low)[0], TOP + HEIGHT + 16, f"{s:.0%}", "middle") for i, s in enumerate(SPARSITIES)]
    y = at(0, dense)[1]
    out.append(f'<line x1="{x0}" x2="{x0 + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#666" stroke-dasharray="5 3"/>')
    for number, method in enumerate(ORDER[1:]):
        found = [(i, mine[method, s]) for i, s in enumerate(SPARSITIES) if (method, s) in mine]
        points = [(at(i + 0.05 * (number - 2), r["mean"]), r) for i, r in found if r["mean"] >= low]
        line = " ".join(f"{x:.1f},{y:.1f}" for (x, y), _ in points)
        out.append(f'<polyline points="{line}" fill="none" stroke="{COLOURS[method]}" stroke-width="1.6"/>')
        for (x, y), r in points:
            top, bottom = (at(0, r["mean"] + sign * r["deviation"])[1] for sign in (1, -1))
            out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{COLOURS[method]}"/>')
            out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{COLOURS[method]}"/>')
    return out


def _text(x: float, y: float, words: str, anchor: str, size: int = 11) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{words}</text>'


def plot(rows: list[dict[str, Any]]) -> str:
    """All tasks side by side, as SVG."""
    tasks = list(dict.fromkeys(r["task"] for r in rows))
    width = LEFT + len(tasks) * (WIDTH + GAP)
    height = TOP + HEIGHT + 60
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    out.append(f'<rect width="{width}" height="{height}" fill="white"/>')
    for i, task in enumerate(tasks):
        out += panel(task, [r for r in rows if r["task"] == task], LEFT + i * (WIDTH + GAP))
    for i, method in enumerate(ORDER):
        x, y = LEFT + 150 * i, height - 16
        dash = ' stroke-dasharray="5 3"' if method == "dense" else ""
        out.append(
            f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{COLOURS[method]}" stroke-width="2"{dash}/>'
        )
        out.append(_text(x + 30, y + 4, method, "start", 12))
    return "\n".join([*out, "</svg>"]) + "\n"


if __name__ == "__main__":
    runs = [run for run in json.loads(Path(sys.argv[1]).read_text())["runs"] if not run["validation"]]
    Path(sys.argv[2]).write_text(plot(summary(runs)))
