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
]  # fmt: skip


def times(device: str, steps: int = 12, rounds: int = 3) -> list[dict[str, Any]]:
    """Return the median over rounds of a step between updates of masks."""
    text = split(bytes(torch.randint(256, (200_000,), generator=torch.Generator().manual_seed(0)).tolist()))
    setting, rows = Setting(steps=1500, device=device), []
    for case in TIMED:
        trainer = Trainer(case, setting, text, 0, None)
        for _ in range(6):
            trainer()
        found = []
        for _ in range(rounds):
            _wait(device)
            began = time.perf_counter()
            for _ in range(steps):
                trainer()
            _wait(device)
            found.append((time.perf_counter() - began) / steps * 1e3)
        rows.append({"name": case.name, "ms": round(statistics.median(found), 2)})
        print(rows[-1], flush=True)
    return rows


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()
