"""The tables and the picture of the docs, from the results of benchmarks/lm.py and benchmarks/lm_inference.py."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "explanation"
TEXTS = {"asv": "American Standard Version", "kjv": "King James Bible"}
#: Trainings of the picture: its net in lm-inference.json, and whether it is a dense one.
DRAWN = {
    "dense": ("dense", True), "dense, equal weights of 75%": ("dense, equal weights of 75%", True),
    "dense, equal weights, boost 3": ("dense, equal weights", True), "Static, boost 4": ("90%", False),
    "trained, GMP, distilled": ("90%", False), "Static all:2:8, boost 2.3": ("all:2:8", False),
    "SR-STE 2:4": ("2:4", False),
}  # fmt: skip
WIDTH, HEIGHT, LEFT, TOP = 560, 330, 60, 24


def trainings(rows: list[dict[str, Any]], text: str, rate: str) -> list[str]:
    """Return a table of trainings, best first; a training that was stopped says at which step."""
    mine = sorted((r for r in rows if (r["text"], r["rate"]) == (text, rate)), key=lambda r: r["bits"])
    whole = [r for r in mine if r["steps"] == r["of"]]
    out = ["| training | weights | bits a byte |", "|---|--:|--:|"]
    out += [f"| {r['name']} | {r['weights'] / 1e6:.2f} M | {r['bits']:.3f} |" for r in whole]
    stopped = [r for r in mine if r not in whole]
    out += [f"| {r['name']}, stopped at step {r['steps']:,} | {r['weights'] / 1e6:.2f} M | {r['bits']:.3f} |"
            for r in stopped]  # fmt: skip
    return out


def table(found: dict[str, Any], inference: list[dict[str, Any]]) -> str:
    """Return what the page includes."""
    lines = [f"*{found['machine']}; made by `benchmarks/lm.py`. One seed.*", ""]
    for text, rate in (("asv", "cosine"), ("kjv", "cosine"), ("kjv", "constant")):
        how = "warm-up and cosine" if rate == "cosine" else "constant learning rate, no warm-up"
        lines += [f"**{TEXTS[text]}**, {how}", "", *trainings(found["rows"], text, rate), ""]
    dense = next(row["ms"] for row in found["times"] if row["name"] == "dense")
    lines += [
        "**A training step**, alone on the GPU, between updates of masks",
        "",
        "| | ms | of dense |",
        "|---|--:|--:|",
    ]
    lines += [f"| {row['name']} | {row['ms']:.1f} | {row['ms'] / dense:.2f} |" for row in found["times"]]
    lines += ["", "**Inference after `pack_`**, one token, one thread of a CPU, float32 (`benchmarks/lm_inference.py`)"]
    lines += ["", "| net | weights | ms |", "|---|--:|--:|"]
    lines += [f"| {row['name']} | {row['weights'] / 1e6:.2f} M | {row['ms']:.2f} |" for row in inference]
    return "\n".join(lines) + "\n"


def picture(found: dict[str, Any], inference: list[dict[str, Any]]) -> str:
    """Return loss over inference time, as SVG."""
    times = {row["name"]: row["ms"] for row in inference}
    bits = {r["name"]: r["bits"] for r in found["rows"] if r["text"] == "asv"}
    points = [(times[net], bits[name], name, dense) for name, (net, dense) in DRAWN.items() if name in bits]
    low, high = (math.log(end(p[0] for p in points)) for end in (min, max))
    least, most = (end(p[1] for p in points) for end in (min, max))

    def at(ms: float, loss: float) -> tuple[float, float]:
        x = LEFT + 30 + (WIDTH - 190) * (math.log(ms) - low) / (high - low)
        return x, TOP + 20 + (HEIGHT - 50) * (1 - (loss - least) / (most - least))

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + LEFT + 20} {HEIGHT + TOP + 50}" '
           'font-family="sans-serif" font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#bbb"/>']  # fmt: skip
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(p[0], p[1]) for p in sorted(points) if p[3]))
    out.append(f'<polyline points="{line}" fill="none" stroke="#888" stroke-dasharray="5 3"/>')
    for ms, loss, name, dense in points:
        (x, y), colour = at(ms, loss), "#666" if dense else "#d62828"
        out.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>')
        out.append(f'<text x="{x + 8:.1f}" y="{y - 6:.1f}" fill="{colour}">{name}, {loss:.3f}</text>')
    for ms in sorted({round(p[0], 1) for p in points}):
        out.append(f'<text x="{at(ms, least)[0]:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{ms:g}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">'
               "ms a token on one thread of a CPU, logarithmic</text>")  # fmt: skip
    middle = TOP + HEIGHT / 2
    out.append(f'<text x="20" y="{middle}" transform="rotate(-90 20 {middle})" text-anchor="middle">bits a byte</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def publish() -> None:
    """Write the table and the picture."""
    found = json.loads((HERE / "results" / "lm.json").read_text())
    inference = json.loads((HERE / "results" / "lm-inference.json").read_text())["rows"]
    (DOCS / "lm-table.md").write_text(table(found, inference))
    (DOCS / "lm.svg").write_text(picture(found, inference))
