"""What sparse training costs: an update, a step with and without a method, a truly sparse step.

    python benchmarks/training_costs.py         writes benchmarks/results/training-costs.json

CPU time of one thread, runs interleaved, the fastest of some: so other work on the machine counts little.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.nn.functional as F
from torch import nn

import gossamer as gs
from benchmarks.training_tasks import mlp

RESULTS = Path(__file__).with_name("results") / "training-costs.json"


def clock(function: Callable[[], Any]) -> float:
    """Milliseconds of CPU time."""
    start = time.process_time()
    function()
    return 1e3 * (time.process_time() - start)


def updates(rounds: int = 7) -> dict[str, float]:
    """An update of a 3072 x 768 layer at 90 %."""
    out = {}
    for cls in (gs.train.SET, gs.train.RigL, gs.train.SRigL):
        torch.manual_seed(0)
        layer = nn.Linear(768, 3072)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        method = cls(layer, optimizer, 0.9, every=1, until=10_000)
        best = math.inf
        for _ in range(rounds):
            optimizer.zero_grad()
            layer(torch.randn(32, 768)).square().mean().backward()
            optimizer.step()
            best = min(best, clock(method.step))
        out[cls.__name__] = round(best, 2)
    return out


def steps(kind: str, rounds: int = 30) -> dict[str, float]:
    """A step of an MLP 784-1024-1024-10, batch 128: dense, masked, and with SRigL at 90 % and an update every 10."""
    x, y = torch.randn(128, 28, 28), torch.randint(10, (128,))
    runs: dict[str, tuple[nn.Module, Any, Any]] = {}
    for name in ("dense", "masked", "SRigL"):
        torch.manual_seed(0)
        model = mlp(784, 1024, 1024, 10)
        optimizer = OPTIMIZERS[kind](model)
        method = None if name == "dense" else gs.train.SRigL(model, optimizer, 0.9, every=10, until=10_000)
        if name == "masked" and method is not None:
            method.close()
        runs[name] = model, optimizer, method if name == "SRigL" else None
    best = {
        "dense": math.inf,
        "masked": math.inf,
        "SRigL, between updates": math.inf,
        "SRigL, with an update": math.inf,
    }

    def step(model: nn.Module, optimizer: Any, method: Any) -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if method is not None:
            method.step()

    for i in range(1, rounds + 1):
        for name, run in runs.items():
            key = name if name != "SRigL" else "SRigL, between updates" if i % 10 else "SRigL, with an update"
            best[key] = min(best[key], clock(lambda run=run: step(*run)))
    between, update = best["SRigL, between updates"], best["SRigL, with an update"]
    best["overhead of SRigL over masked at every=100, %"] = 100 * (
        (0.99 * between + 0.01 * update) / best["masked"] - 1
    )
    return {name: round(value, 2) for name, value in best.items()}


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD with momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    "AdamW, fused": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, fused=True),
}


def truly_sparse(rounds: int = 8) -> dict[str, dict[str, float]]:
    """Three layers of 2048, batch 128, AdamW, 95 %: the fastest step, and bytes of weights and optimizer state."""
    x, runs = torch.randn(128, 2048), {}
    for name, format in (("dense", None), ("PackedCSR", gs.formats.PackedCSR()), ("Condensed", gs.formats.Condensed())):
        torch.manual_seed(0)
        model = mlp(2048, 2048, 2048, 2048)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        options: dict[str, Any] = {"distribution": "uniform", "every": 100, "until": 1000, "format": format}
        runs[name] = model, optimizer, format and gs.train.SRigL(model, optimizer, 0.95, **options)
    best = dict.fromkeys(runs, math.inf)

    def step(model: nn.Module, optimizer: Any, method: Any) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if method is not None:
            method.step()

    for _ in range(rounds):
        for name, run in runs.items():
            best[name] = min(best[name], clock(lambda run=run: step(*run)))
    out = {}
    for name, (model, optimizer, _) in runs.items():
        state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        size = sum(t.nbytes for t in [*model.parameters(), *state])
        out[name] = {"ms": round(best[name], 1), "MB": round(size / 1e6, 1)}
    return out


def measure() -> dict[str, Any]:
    """All of it."""
    torch.set_num_threads(1)
    return {
        "machine": f"{platform.machine()}, torch {torch.__version__}, CPU time of one thread",
        "update of 3072 x 768, ms": updates(),
        "step of MLP 784-1024-1024-10, ms": {kind: steps(kind) for kind in OPTIMIZERS},
        "3 x 2048 at 95 %, AdamW, a step": truly_sparse(),
    }


if __name__ == "__main__":
    found = measure()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
