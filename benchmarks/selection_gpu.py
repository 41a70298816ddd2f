"""Masks of a language model on a GPU: milliseconds to select all layers, by kernels and layer by layer with torch.

    python benchmarks/selection_gpu.py [--out FILE]

The GPT of ``gossamer bench lm`` (6 blocks of 512, 19 M weights). A selection chooses the positions from the dense
weights, and writes masks and sparse weights; it is what a straight-through method does after each optimizer step.
Top-KAST selects two sets. Both ways are interleaved; times are medians of CUDA events. The share of the magnitudes that
the masks of both ways keep is compared. Writes ``benchmarks/results/selection-gpu.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the lines above
from gossamer.app.bench.lm_model import GPT  # noqa: E402
from gossamer.train.masters import write  # noqa: E402
from gossamer.train.straight import Straight  # noqa: E402

RESULT = HERE / "results" / "selection-gpu.json"
TABLE = HERE.parent / "docs" / "explanation" / "selection-gpu-table.md"
CASES: list[tuple[str, str]] = [
    ("SRSTE", "2:4"), ("SRSTE", "2:8"), ("SRSTE", "all:2:8"), ("SRSTE", "64:2:8"), ("SRSTE", "all:2:16"),
    ("SRSTE", "all:2:32"), ("STE", "90%"), ("TopKAST", "90%"),
]  # fmt: skip


def measure(name: str, pattern: str, dtype: torch.dtype, rounds: int, seconds: float = 12.0) -> dict[str, Any]:
    """Return the times of a selection by the kernel and by torch, and what both keep."""
    torch.manual_seed(0)
    model = GPT().to("cuda", dtype)
    weights = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    method: Straight = getattr(gs.train, name)(model, torch.optim.SGD(weights, lr=0.1), pattern)
    masters = method._masters
    if method.choose_together(masters):
        raise SystemExit(f"{name} {pattern}: some layers are left for torch")
    calls = {"kernel": lambda: method.choose_together(masters), "torch": lambda: by_layer(method, masters)}
    kept = {}
    for way, call in calls.items():
        call()
        sums = [
            (layer.weight.abs().double().sum(), layer.extra["dense"].abs().double().sum()) for layer in method.layers
        ]
        kept[way] = round(float(sum(one for one, _ in sums) / sum(every for _, every in sums)), 6)
    same = kept["kernel"] == kept["torch"]
    times = timed(calls, rounds, seconds)
    return {
        "method": name,
        "pattern": pattern,
        "dtype": str(dtype).removeprefix("torch."),
        **times,
        "kept": kept,
        "same": same,
    }


def by_layer(method: Straight, masters: Sequence[Any]) -> None:
    """Select as the methods do without the kernel."""
    masks = [master.gather([method.choose(layer) for layer in master.layers]) for master in masters]
    write(masters, [master.gather([method.values(layer) for layer in master.layers]) for master in masters], masks)
    if isinstance(method, gs.train.TopKAST):  # before the next step
        for layer in method.layers:
            method._top(layer, method.saliency(layer, layer.extra["dense"]), method._updated[layer.name])


def timed(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, float]:
    """Return median milliseconds of each call, interleaved; fewer rounds if they take too long."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    for _ in range(rounds):
        for name, call in calls.items():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            call()
            after.record()
            torch.cuda.synchronize()
            found[name].append(before.elapsed_time(after))
        if time.perf_counter() > end:
            break
    return {f"{name} ms": round(statistics.median(each), 3) for name, each in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, pattern in CASES:
        for dtype in (torch.float32, torch.bfloat16) if pattern in ("2:4", "all:2:8") else (torch.float32,):
            with torch.no_grad():
                rows.append(measure(name, pattern, dtype, arguments.rounds))
            found = {"machine": torch.cuda.get_device_name(), "rows": rows}  # written at once: the last rows take long
            arguments.out.write_text(json.dumps(found, indent=1) + "\n")
            TABLE.write_text(table(rows))
            print(table(rows[-1:]), flush=True)


def table(rows: list[dict[str, Any]]) -> str:
    """Return what the page includes."""
    lines = ["| method | pattern | weights | kernel, ms | torch, ms | gain |", "|---|---|---|--:|--:|--:|"]
    for row in rows:
        times = row["kernel ms"], row["torch ms"]
        figures = f"{times[0]:.2f} | {times[1]:.1f} | {times[1] / times[0]:.0f}x"
        lines.append(f"| {row['method']} | {row['pattern']} | {row['dtype']} | {figures} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
