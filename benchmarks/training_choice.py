"""What the defaults of SRigL and of all methods were chosen by: accuracy on validation images, never on test images.

    python benchmarks/training_choice.py --jobs 16        writes benchmarks/results/training-choice.json

``gamma`` (share of the fan-in that must be salient, or the neuron is ablated) and ``min_salient`` (how many must be in
any case) of SRigL; ``growth`` and ``fraction`` of RigL; ``init``, which all methods share. A fifth of the train images
is kept back and judged.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.training import SAME, Cell, measure_all, read

RESULTS = Path(__file__).with_name("results") / "training-choice.json"
ABLATION = [{"gamma": g, "min_salient": m} for g, m in ((0.3, 1), (0.3, 2), (0.3, 12), (0.95, 1), (0.95, 12))]
GROWTH = [{"growth": g, "fraction": f} for g in ("gradient", "even gradient") for f in (0.3, 0.1)]
INIT = [{"init": init} for init in ("rescale", "kaiming", None)]


def cells(seeds: int) -> list[Cell]:
    """All runs."""
    ablation = itertools.product(ABLATION, ("mnist5k-mlp", "mnist5k-cnn", "mnist5k-transformer"), (0.9, 0.99))
    init = itertools.product(INIT, ("torch's mlp", "torch's mlp, 5 epochs", "mnist5k-transformer"), (0.9,))
    settings = [*ablation, *init]
    growth = list(itertools.product(GROWTH, ("mnist5k-mlp",), (0.9, 0.99)))
    return [
        _cell(task, method, sparsity, seed, how)
        for seed in range(seeds)
        for method, each in (("SRigL", settings), ("RigL", growth))
        for how, task, sparsity in each
    ]


def _cell(task: str, method: str, sparsity: float, seed: int, options: dict[str, Any]) -> Cell:
    return Cell(task, method, sparsity, seed, validation=True, options=tuple(options.items()))


def table(rows: list[dict[str, Any]]) -> str:
    """Mean accuracies: settings x tasks."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if "accuracy" in row:
            column = f"{row['task']} {row['sparsity']:.0%}"
            setting = ", ".join(f"{k}={v}" for k, v in row["options"].items())
            groups.setdefault((setting, column), []).append(row["accuracy"])
    lines: list[str] = []
    for kind in ("gamma", "init", "growth"):
        settings = [s for s in dict.fromkeys(s for s, _ in groups) if s.startswith(kind)]
        columns = sorted({c for s, c in groups if s in settings})
        lines += ["", "| | " + " | ".join([*columns, "mean"]) + " |", "|---|" + "---:|" * (len(columns) + 1)]
        for setting in settings:
            means = [statistics.mean(groups[setting, c]) if (setting, c) in groups else float("nan") for c in columns]
            lines.append(f"| {setting} | " + " | ".join(f"{m:.1f}" for m in [*means, statistics.mean(means)]) + " |")
    return "\n".join(lines).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tasks", nargs="*", help="only these")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    todo = [cell for cell in cells(args.seeds) if not args.tasks or cell.task in args.tasks]
    rows = read(args.out) if args.table else measure_all(todo, args.out, args.jobs, args.limit)
    wanted = {cell.key() for cell in todo}
    print(table([row for row in rows if tuple(row[k] for k in SAME) in wanted]))


if __name__ == "__main__":
    main()
