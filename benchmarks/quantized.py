"""What FP8 and int4 cost in quality, dense and on top of sparsity: the pretrained MiniLM, on any machine.

python benchmarks/quantized.py         results/quantized.json and docs/explanation/quantized-table.md; some minutes

Pruned once by SparseGPT with 128 sentences of calibration, not trained. Figures are the cosine of the embeddings of 100
verses with those of the dense model. Quantized layers compute here by their reference for a CPU: scales and rounding
are those of the GPU's kernels. (Each verse's other translation was the nearest of 100 in all cases: too easy to tell.)
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src")]

import torch  # noqa: E402

import gossamer as gs  # noqa: E402
from gossamer.app.bench.pruning import Judge  # noqa: E402

PATTERNS: dict[str, Any] = {"dense": None, "2:4": "2:4", "all:2:8": gs.VNM("all", 2, 8), "60 % unstructured": "60%"}
VERSES = slice(0, 100)
NUMBERS = ("float32", "fp8", "int4")
TABLE = HERE.parent / "docs" / "explanation" / "quantized-table.md"


def measure() -> list[dict[str, Any]]:
    """A row for each pattern and type of numbers."""
    judge, rows = Judge(VERSES), []
    for name, pattern in PATTERNS.items():
        pruned = copy.deepcopy(judge.dense)
        if pattern is not None:
            gs.prune.oneshot(pruned, pattern, judge.calibration, method="sparsegpt")
            gs.densify_(pruned)
        for numbers in NUMBERS:
            model = copy.deepcopy(pruned)
            try:
                small = model if numbers == "float32" else gs.quantize_(model, numbers)  # type: ignore[arg-type]
            except ValueError:
                continue  # int4 is for 2:m
            rows.append({"pattern": name, "numbers": numbers, **judge(small)})
            print(rows[-1], flush=True)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """Return Markdown: a line for each pattern, the cosine for each type of numbers."""
    lines = ["| MiniLM, cosine with dense | " + " | ".join(NUMBERS) + " |", "|---|" + "--:|" * len(NUMBERS)]
    for name in PATTERNS:
        found = {row["numbers"]: row for row in rows if row["pattern"] == name}
        cells = (f"{found[n]['cosine']:.3f}" if n in found else "" for n in NUMBERS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    torch.manual_seed(0)
    with torch.no_grad():
        rows = measure()
    (HERE / "results" / "quantized.json").write_text(json.dumps(rows, indent=1) + "\n")
    TABLE.write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
