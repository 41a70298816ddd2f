"""Inference time of the nets of the language-model benchmark on a CPU: one token, one thread, float32.

    python benchmarks/lm_inference.py

Masks are random: time depends on where weights are, not on how good they are. Nets are interleaved; a time is the least
CPU time of many calls, so that other processes of the machine count as little as possible.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import gossamer as gs
from gossamer.app.bench.lm_model import GPT, weights_of

RESULTS = Path(__file__).with_name("results") / "lm-inference.json"
NETS = {
    "dense": (512, ""), "dense, width 416": (416, ""), "dense, width 320": (320, ""),
    "dense, equal weights of 75%": (256, ""), "dense, width 224": (224, ""), "dense, width 192": (192, ""),
    "dense, equal weights": (160, ""),
    "75%": (512, "75%"), "90%": (512, "90%"), "95%": (512, "95%"), "2:4": (512, "2:4"), "2:8": (512, "2:8"),
    "all:2:8": (512, "all:2:8"), "fan-in 90%": (512, "fan-in 90%"), "block 4x4 90%": (512, "block 4x4 90%"),
}  # fmt: skip


def net(width: int, how: str) -> tuple[nn.Module, int]:
    """Return a net for inference, packed if it is sparse, and its number of weights."""
    torch.manual_seed(0)
    model = GPT(width).eval()
    if how:
        gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), how).close()
    count = weights_of(model)
    if how:
        gs.pack_(model, torch.zeros(1, 1, dtype=torch.long))
    return model, count


@torch.no_grad()
def measure(rounds: int = 60, calls: int = 10) -> list[dict[str, Any]]:
    """Return milliseconds of a call for each net."""
    torch.set_num_threads(1)
    made = {name: net(*how) for name, how in NETS.items()}
    token = torch.zeros(1, 1, dtype=torch.long)
    best = dict.fromkeys(made, float("inf"))
    for _ in range(rounds):
        for name, (model, _) in made.items():
            for _ in range(calls):
                began = time.process_time()
                model(token)
                best[name] = min(best[name], time.process_time() - began)
    return [{"name": name, "weights": made[name][1], "ms": round(1e3 * best[name], 3)} for name in made]


if __name__ == "__main__":
    rows = measure()
    for row in rows:
        print(row)
    RESULTS.write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")
