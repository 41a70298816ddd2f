"""How long choosing takes: patterns on a weight of random scores, and what is left of the whole score.

    python benchmarks/selection.py [--out FILE]

Seconds of one thread, best of a few turns. It prints a table and writes ``benchmarks/results/selection.json``.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the line above

RESULT = HERE / "results" / "selection.json"
CASES: list[tuple[gs.Pattern, tuple[int, int]]] = [
    (gs.Unstructured(0.9), (3072, 768)),
    (gs.NM(2, 4), (3072, 768)),
    (gs.FanIn(0.9), (3072, 768)),
    (gs.GroupedNM(1, 4, 8), (768, 3072)),
    (gs.GroupedNM(2, 4, 8), (768, 3072)),
    (gs.GroupedNM(1, 10, 4), (768, 3072)),
    (gs.GroupedNM(1, 20, 2), (768, 3072)),
    (gs.VNM(128, 2, 8), (4096, 4096)),
    (gs.VNM(128, 2, 16), (4096, 4096)),
    (gs.VNM(128, 2, 32), (4096, 4096)),
]


def measure(pattern: gs.Pattern, shape: tuple[int, int], turns: int = 3) -> dict[str, object]:
    """Seconds of the fastest turn, and the share of the score that is kept."""
    scores, seconds = torch.randn(shape, generator=torch.Generator().manual_seed(0)).abs(), float("inf")
    for _ in range(turns):
        start = time.perf_counter()
        mask = pattern.select(scores)
        seconds = min(seconds, time.perf_counter() - start)
    kept = float(scores.double()[mask].sum() / scores.double().sum())
    return {"pattern": repr(pattern), "shape": shape, "seconds": round(seconds, 4), "kept": round(kept, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("| pattern | shape | seconds | score kept |\n|---|---|--:|--:|")
    for case in CASES:
        rows.append(row := measure(*case))
        print("| `{pattern}` | {0} x {1} | {seconds:.3f} | {kept:.3f} |".format(*row["shape"], **row), flush=True)
    arguments.out.write_text(
        json.dumps({"machine": platform.processor() or platform.machine(), "rows": rows}, indent=1)
    )


if __name__ == "__main__":
    main()
