"""The tables and the picture of the docs, from the results of benchmarks/lm.py and benchmarks/lm_inference.py."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs" / "explanation"
TEXTS = {"asv": "American Standard Version", "kjv": "King James Bible", "code": "Python sources"}
#: Text, learning rate, steps, and whether the blocks were compiled.
PARTS = (
    ("code", "cosine", 4500, True), ("code", "cosine", 3000, True), ("code", "cosine", 1500, True),
    ("asv", "cosine", 1500, True), ("asv", "cosine", 1500, False), ("asv", "cosine", 4500, False),
    ("kjv", "cosine", 1500, False), ("kjv", "constant", 1500, False),
)  # fmt: skip
#: Trainings of the picture: the network in lm-inference.json, the label, and whether it is dense.
DRAWN = {
    "dense, equal weights of 75%, boost 2": ("dense, equal weights of 75%", "dense, width 256", True),
    "dense, width 192, boost 3": ("dense, width 192", "dense, width 192", True),
    "dense, equal weights, boost 3": ("dense, equal weights", "dense, width 160", True),
    "GMP, following by 1.2, 15 to 75 %": ("90%", "90 %, gradual", False),
    "GMP all:2:8 by groups, following by 1.2, 15 to 75 %": ("all:2:8", "all:2:8, gradual", False),
    "GMP 4x4 blocks, following, 15 to 75 %": ("block 4x4 90%", "90 %, 4x4 blocks, gradual", False),
    "Static, boost 4": ("90%", "90 %, fixed masks", False),
}
PICTURED = ("code", 4500)
WIDTH, HEIGHT, LEFT, TOP = 560, 330, 70, 24


def trainings(rows: list[dict[str, Any]], text: str, rate: str, steps: int, compiled: bool) -> list[str]:
    """Return a table of trainings that were not stopped, best first: the mean over seeds, and how far these are apart.

    Python sources have a second column: on the package that settings are chosen by.
    """
    teams: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        same = (row["text"], row["rate"], row["of"], row.get("compiled", False)) == (text, rate, steps, compiled)
        if same and row["steps"] == steps:
            teams.setdefault(row["name"], []).append(row)
    two = text == "code"
    more = " to choose by |" if two else ""
    out = [f"| training | weights | bits per byte |{more} runs | highest - lowest |",
           f"|---|--:|--:|{'--:|' if two else ''}--:|--:|"]  # fmt: skip
    for name, team in sorted(teams.items(), key=lambda item: mean_bits(item[1])):
        bits = [row["bits"] for row in team]
        apart = f"{max(bits) - min(bits):.3f}" if len(bits) > 1 else ""
        figures = f"{mean_bits(team):.3f} |" + (f" {mean_bits(team, 'bits to choose by'):.3f} |" if two else "")
        out.append(f"| {name} | {team[0]['weights'] / 1e6:.2f} M | {figures} {len(team)} | {apart} |")
    return out


def mean_bits(team: list[dict[str, Any]], what: str = "bits") -> float:
    """Return the mean over seeds."""
    return statistics.mean(row[what] for row in team)


def table(found: dict[str, Any], inference: list[dict[str, Any]], gpu: list[dict[str, Any]]) -> str:
    """Return what the page includes."""
    lines = [f"*{found['machine']}; made by `benchmarks/lm.py`.*", ""]
    for text, rate, steps, compiled in PARTS:
        how = "warm-up and cosine" if rate == "cosine" else "constant learning rate, no warm-up"
        after = ", after the 1,500 of the teacher" if steps == 3000 else ""
        lines += [f"**{TEXTS[text]}**, {steps:,} steps{after}, {how}{', compiled blocks' if compiled else ''}", ""]
        lines += [*trainings(found["rows"], text, rate, steps, compiled), ""]
    lines += [*source(found["text"]), ""]
    dense = found["times"][0]
    lines += ["**A training step**, with nothing else on the GPU, between updates of masks", ""]
    lines += ["| | ms | of dense |", "|---|--:|--:|"]
    lines += [f"| {row['name']} | {row['ms']:.1f} | {row['ms'] / dense['ms']:.2f} |" for row in found["times"]]
    lines += ["", "**Inference after `pack_`**, one token, one thread of a CPU, float32 (`benchmarks/lm_inference.py`)"]
    lines += ["", "| network | weights | ms |", "|---|--:|--:|"]
    lines += [f"| {row['name']} | {row['weights'] / 1e6:.2f} M | {row['ms']:.2f} |" for row in inference]
    sizes = [name for name in gpu[0] if name.startswith("ms, ")]
    lines += ["", "**On a GPU**, bfloat16, by CUDA graphs, ms", ""]
    lines += [f"| network | weights | {' | '.join(name.removeprefix('ms, ') for name in sizes)} |", "|---|--:|--:|--:|"]
    for row in gpu:
        lines.append(f"| {row['name']} | {row['weights'] / 1e6:.2f} M | {' | '.join(f'{row[n]:.3f}' for n in sizes)} |")
    return "\n".join(lines) + "\n"


def source(text: dict[str, Any]) -> list[str]:
    """Say what the Python sources are."""
    parts = (f"{name} {text['versions'][name]} ({size / 1e6:.1f} MB)" for name, size in text["bytes"].items())
    *trained, reported, chosen = parts
    return [f"The Python sources are those of {', '.join(trained)}. Bits per byte are those of {reported}, those to "
            f"choose by of {chosen}; of each 1 MB is read. SHA-256 of all: `{text['digest'][:16]}`."]  # fmt: skip


def picture(found: dict[str, Any], inference: list[dict[str, Any]]) -> str:
    """Return loss over inference time, as SVG."""
    times = {row["name"]: row["ms"] for row in inference}
    teams: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        if (row["text"], row["of"]) == PICTURED and row["steps"] == row["of"]:
            teams.setdefault(row["name"], []).append(row)
    bits = {name: mean_bits(team) for name, team in teams.items()}
    drawn = [(bits[name], *DRAWN[name]) for name in DRAWN if name in bits]
    points = [(times[net], loss, label, dense) for loss, net, label, dense in drawn]
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
        above = not any(0 < other - ms < 2 and abs(loss - level) < 0.005 for other, level, *_ in points)
        shift = -6 if above else 16  # below, where the next point to the right has its label above
        out.append(f'<text x="{x + 8:.1f}" y="{y + shift:.1f}" fill="{colour}">{name}, {loss:.3f}</text>')
    for level in (1.50, 1.52, 1.54, 1.56, 1.58, 1.60):
        y = at(1.0, level)[1]
        out.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{level:.2f}</text>')
    for ms in sorted({round(p[0], 1) for p in points}):
        out.append(f'<text x="{at(ms, least)[0]:.1f}" y="{TOP + HEIGHT + 18}" text-anchor="middle">{ms:g}</text>')
    out.append(f'<text x="{LEFT + WIDTH / 2}" y="{TOP + HEIGHT + 40}" text-anchor="middle">'
               "milliseconds per token, one CPU thread (log scale)</text>")  # fmt: skip
    middle = TOP + HEIGHT / 2
    label = "bits per byte (lower is better)"
    out.append(f'<text x="20" y="{middle}" transform="rotate(-90 20 {middle})" text-anchor="middle">{label}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def publish() -> None:
    """Write the table and the picture."""
    found = json.loads((HERE / "results" / "lm.json").read_text())
    measured = json.loads((HERE / "results" / "lm-inference.json").read_text())
    inference = measured["rows"]
    (DOCS / "lm-table.md").write_text(table(found, inference, measured["gpu rows"]))
    (DOCS / "lm.svg").write_text(picture(found, inference))
