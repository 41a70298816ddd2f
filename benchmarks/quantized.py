"""What FP8 and int4 cost in quality, dense and on top of sparsity: the pretrained MiniLM and a language model.

    python benchmarks/quantized.py                  results/quantized.json and the tables of the docs, on any machine
    python benchmarks/quantized.py --only language  minilm or language; half an hour for the latter, on two cores

Pruned once by SparseGPT, not trained afterwards. MiniLM: 128 sentences of calibration; the cosine of the embeddings of
100 verses with those of the dense model. (Each verse's other translation was the nearest of 100 in all cases: too easy
to tell.) The language model: a GPT over bytes, 4 blocks of width 192, trained here on the King James Bible for 1,500
steps; bits per byte of text that it has not seen, pruned with 64 windows of the text that it has. Its head stays dense.
Quantized layers compute here by their reference for a CPU: scales and rounding are those of the GPU's kernels.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src")]

import torch  # noqa: E402
from torch import nn  # noqa: E402

import gossamer as gs  # noqa: E402
from gossamer.app.bench.lm_cases import Case  # noqa: E402
from gossamer.app.bench.lm_model import GPT, Text, text_of  # noqa: E402
from gossamer.app.bench.lm_train import Batches, Setting, bits, train  # noqa: E402
from gossamer.app.bench.pruning import Judge  # noqa: E402

PATTERNS: dict[str, Any] = {"dense": None, "2:4": "2:4", "all:2:8": gs.VNM("all", 2, 8), "60 % unstructured": "60%"}
VERSES = slice(0, 100)
NUMBERS = ("float32", "fp8", "int4")
TABLES = HERE.parent / "docs" / "explanation"
RESULTS = HERE / "results" / "quantized.json"
SETTING = Setting(steps=1500, batch=32, context=128, layers=4, device="cpu", looks=1)
Judged = Callable[[nn.Module], dict[str, float]]


def measure(dense: nn.Module, calibration: Any, judge: Judged, dense_layers: tuple[str, ...]) -> list[dict[str, Any]]:
    """A row for each pattern and type of numbers."""
    rows = []
    for name, pattern in PATTERNS.items():
        pruned = copy.deepcopy(dense)
        if pattern is not None:
            how = {**dict.fromkeys(dense_layers), "*": pattern}
            gs.prune.oneshot(pruned, how, calibration, method="sparsegpt")
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


def minilm() -> list[dict[str, Any]]:
    """Of the pretrained MiniLM: cosines with the dense model."""
    judge = Judge(VERSES)
    return measure(judge.dense, judge.calibration, judge, ())


def trained(text: Text) -> nn.Module:
    """The language model, trained here."""
    with torch.enable_grad():
        _, model = train(Case("dense", width=192), SETTING, text)
    assert isinstance(model, GPT)
    return model.eval()


def language() -> list[dict[str, Any]]:
    """Of a language model: bits per byte."""
    text = text_of("kjv")
    model, draw = trained(text), Batches(text.train, SETTING, 1)
    calibration = [draw()[:, :-1] for _ in range(2)]
    return measure(model, calibration, lambda small: {"bits": bits(small, text.held, SETTING)}, ("head",))


def table(rows: list[dict[str, Any]], what: str, figure: str) -> str:
    """Return Markdown: a line for each pattern, a figure for each type of numbers."""
    lines = [f"| {what} | " + " | ".join(NUMBERS) + " |", "|---|" + "--:|" * len(NUMBERS)]
    for name in PATTERNS:
        found = {row["numbers"]: row for row in rows if row["pattern"] == name}
        cells = (f"{found[n][figure]:.3f}" if n in found else "" for n in NUMBERS)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, tuple[Callable[[], list[dict[str, Any]]], str, str, str]] = {
    "minilm": (minilm, "MiniLM, cosine with dense", "cosine", "quantized-table.md"),
    "language": (language, "language model, bits per byte", "bits", "quantized-language-table.md"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    only = parser.parse_args().only
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name, (part, what, figure, file) in PARTS.items():
        if only in (None, name):
            torch.manual_seed(0)
            with torch.no_grad():
                found[name] = part()
            RESULTS.write_text(json.dumps(found, indent=1) + "\n")
            (TABLES / file).write_text(table(found[name], what, figure))
            print(table(found[name], what, figure))


if __name__ == "__main__":
    main()
