"""Milliseconds a training step of the language-model benchmark takes, each method alone on the machine."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from gossamer.app.bench.lm_cases import Case
from gossamer.app.bench.lm_model import split
from gossamer.app.bench.lm_train import Setting, Trainer

_END = {"until": 0.75}
TIMED = [
    Case("dense"), Case("dense, equal weights", width=160), Case("Static 90%", "Static", "90%"),
    Case("RigL 90%", "RigL", "90%", _END), Case("GMP 90%", "GMP", "90%", _END), Case("SR-STE 2:4", "SRSTE", "2:4"),
    Case("SR-STE all:2:8", "SRSTE", "all:2:8"), Case("STE 90%", "STE", "90%"), Case("Top-KAST 90%", "TopKAST", "90%"),
    Case("HardConcrete 90%", "HardConcrete", "90%", _END),
]  # fmt: skip


def times(device: str, steps: int = 12, rounds: int = 5) -> list[dict[str, Any]]:
    """Return the median over rounds of a step between updates of masks, in eager mode."""
    text = split(bytes(torch.randint(256, (200_000,), generator=torch.Generator().manual_seed(0)).tolist()))
    setting = Setting(steps=1500, device=device)
    trainers = {case.name: Trainer(case, setting, text, 0, None) for case in TIMED}
    for trainer in trainers.values():
        for _ in range(6):
            trainer()
    found: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):  # interleaved, so that other load of the machine meets all of them
        for name, trainer in trainers.items():
            _wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                trainer()
            _wait(device)
            found[name].append((time.perf_counter() - began) / steps * 1e3)
    rows = [{"name": name, "ms": round(statistics.median(each), 2)} for name, each in found.items()]
    for row in rows:
        print(row, flush=True)
    return rows


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
