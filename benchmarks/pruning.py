"""The published figures of pruning: which method keeps how much, and how long it takes.

    python benchmarks/pruning.py                  all of it, about ten minutes on two quiet cores
    python benchmarks/pruning.py quality speed    only these parts: quality, cnn, recovery, speed

Writes results/pruning.json and the table that the docs include. What is measured stands in
src/gossamer/app/bench/pruning.py; `gossamer bench pruning` runs the same and writes nothing.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gossamer.app.bench import pruning  # noqa: E402

RESULTS = Path(__file__).with_name("results") / "pruning.json"
TABLE = ROOT / "docs" / "explanation" / "pruning-table.md"


def table(found: dict[str, Any]) -> str:
    """What the docs include."""
    lines = [f"*{found['machine']}, torch {found['torch']}; made by `benchmarks/pruning.py`.*", ""]
    if part := found.get("quality"):
        lines += [
            "all-MiniLM-L6-v2 as published, all 36 linear layers pruned, no training; calibrated on",
            f"{part['calibration']} verses. Cosine of the embeddings of {part['test']} other verses to the dense",
            f"model's, and how many are found first among {part['test']} in another translation",
            f"(dense {part['dense']['found']:.1%}).",
            "", "| pattern | method | cosine | found | layer error | seconds |", "|---|---|--:|--:|--:|--:|",
        ]  # fmt: skip
        for r in part["rows"]:
            figures = f"{r['cosine']:.3f} | {r['found']:.1%} | {r['error']:.4f} | {r['seconds']:.0f}"
            lines.append(f"| {r['pattern']} | {r['method']} | {figures} |")
        lines.append("")
    recipes = [found[name] for name in ("recovery first recipe", "recovery") if name in found]
    for part in recipes:
        lines += [
            f"The same model at {part['pattern']} (75 %) with training: `gradual` in {len(part['stages'])} stages by",
            f"second order, {part['steps']} steps of {part['batch']} verses towards the dense model's",
            f"{part['towards']}, {part['seconds'] / 60:.0f} minutes. Verses are searched among {part['crowd']}.",
            "", "| | cosine | found |", "|---|--:|--:|",
        ]  # fmt: skip
        for name in ("dense", "pruned", "trained"):
            lines.append(f"| {name} | {part[name]['cosine']:.3f} | {part[name]['found']:.2%} |")
        lines += ["", f"Of the dense model's share of verses found, {part['lost']:.3%} is lost.", ""]
    if len(recipes) > 1:
        lines += ["The first recipe was tried first; the second is measured on verses that no choice was made by.", ""]
    if part := found.get("cnn"):
        names = list(dict.fromkeys(r["method"] for r in part["rows"]))
        lines += [
            "A small convolutional network trained on scikit-learn's digits, no training after pruning: share of test "
            f"images it gets right (dense {part['dense']:.1%}).",
            "", "| pattern | " + " | ".join(names) + " |", "|---|" + "--:|" * len(names),
        ]  # fmt: skip
        for how in dict.fromkeys(r["pattern"] for r in part["rows"]):
            lines.append(
                f"| {how} | " + " | ".join(f"{r['accuracy']:.1%}" for r in part["rows"] if r["pattern"] == how) + " |"
            )
        lines.append("")
    if part := found.get("speed"):
        one, all_ = part["cpu"], part["elapsed"]
        lines += [
            f"| seconds | one thread, CPU time | {part['threads']} threads, elapsed |", "|---|--:|--:|",
            "| SparseGPT, 4096x4096 to 2:4, given X Xᵀ | "
            + " | ".join(f"{x['sparsegpt']['seconds']:.2f}" for x in (one, all_)) + " |",
            "| the published algorithm's operations, as matrix products | "
            + " | ".join(f"{x['sparsegpt']['reference']:.2f}" for x in (one, all_)) + " |",
            "| the first over the second | " + " | ".join(f"{x['sparsegpt']['ratio']:.2f}" for x in (one, all_)) + " |",
            f"| OBS by Fisher, 768x3072 to 64:2:8, {one['fisher']['gradients']} gradients | "
            + " | ".join(f"{x['fisher']['seconds']:.1f}" for x in (one, all_)) + " |",
            "",
        ]  # fmt: skip
    return "\n".join(lines)


def main(parts: list[str]) -> None:
    """Measure some parts or all, keep what was measured before, write the table."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores (shared)"
    for name in parts or list(pruning.PARTS):
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found |= {"machine": machine, **pruning.run(quick=False, parts=[name])}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        TABLE.write_text(table(found))
    print(TABLE.read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
