"""Blocks and bfloat16 on the CPU: BSR against dense torch, and packed weights of bfloat16 against dense bfloat16.

    python benchmarks/blocks.py              one thread; writes results/blocks-<isa>.json
    python benchmarks/blocks.py --quick      fewer tokens, writes nothing: half a minute

Through F.linear on ordinary tensors, interleaved, the minimum counts; geometric mean over three shapes (bench/cpu.py).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import gossamer as gs  # noqa: E402
from gossamer import native  # noqa: E402
from gossamer.app.bench.cpu import SHAPES  # noqa: E402
from gossamer.formats import PackedCSR, PackedNM  # noqa: E402
from gossamer.report.timing import interleaved  # noqa: E402

BLOCKS = ((4, 4), (8, 8), (16, 16), (32, 32), (1, 4), (1, 16))
HALVES = (
    ("50%", PackedCSR(240)),
    ("2:4", PackedNM(2, 4)),
    ("90%", PackedCSR()),
    ("1:10", PackedNM(1, 10)),
    ("block 4x4 90%", gs.BSR((4, 4))),
)


def blocks(sparsity: str, tokens: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Every block, and an unstructured weight of the same sparsity, against dense."""

    def weights(dense: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {f"unstructured {sparsity}": gs.sparsify(dense, sparsity, format=PackedCSR())}
        return made | {how: gs.sparsify(dense, how) for how in (f"block {h}x{w} {sparsity}" for h, w in BLOCKS)}

    return _gains(weights, tokens, torch.float32, seconds)


def halves(tokens: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Weights of bfloat16 against dense bfloat16; the same of float32 against the same."""

    def weights(dense: torch.Tensor) -> dict[str, torch.Tensor]:
        made = {how: gs.sparsify(dense, how, format=format) for how, format in HALVES}
        full = {f"{how}, float32": gs.from_dense(w.to_dense().float(), w.format) for how, w in made.items()}
        return {"dense, float32": dense.float()} | made | full

    return _gains(weights, tokens, torch.bfloat16, seconds)


def training(sparsity: str, tokens: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """Forward and backward: gradients of the input and of the values."""

    def weights(dense: torch.Tensor) -> dict[str, torch.Tensor]:
        return {how: gs.sparsify(dense, how) for how in (f"block {h}x{w} {sparsity}" for h, w in BLOCKS[:4])}

    return _gains(weights, tokens, torch.float32, seconds, backward=True)


def _gains(
    weights: Callable[[torch.Tensor], dict[str, torch.Tensor]],
    tokens: Sequence[int],
    dtype: torch.dtype,
    seconds: float,
    backward: bool = False,
) -> list[dict[str, Any]]:
    times: dict[tuple[str, int], list[float]] = {}
    for shape in SHAPES:
        torch.manual_seed(0)
        dense = torch.randn(shape, dtype=dtype)
        have = {"dense": dense} | weights(dense)
        for count in tokens:
            calls = {name: _call(w, count, backward) for name, w in have.items()}
            with torch.set_grad_enabled(backward):
                for name, best in interleaved(calls, seconds).items():
                    times.setdefault((name, count), []).append(best)
    rows = []
    for (name, count), each in times.items():
        gain = math.prod(d / t for d, t in zip(times["dense", count], each, strict=True)) ** (1 / len(each))
        us = [round(t * 1e6, 1) for t in each]
        rows.append({"name": name, "tokens": count, "us": us, "gain": round(gain, 2)})
    return rows


def _call(weight: torch.Tensor, tokens: int, backward: bool) -> Callable[[], Any]:
    x, bias = torch.randn(tokens, weight.shape[1]).to(weight.dtype), torch.randn(weight.shape[0]).to(weight.dtype)
    if not backward:
        return lambda: F.linear(x, weight, bias)
    x.requires_grad_()
    weight = weight.detach().requires_grad_()
    grad = torch.randn(tokens, weight.shape[0])
    return lambda: torch.autograd.grad(F.linear(x, weight, bias), (x, weight), grad)


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print gains as a table of Markdown: a row for each weight, a column for each number of tokens."""
    tokens = sorted({row["tokens"] for row in rows})
    print(f"\n| {title} | " + " | ".join(map(str, tokens)) + " |\n|---|" + "--:|" * len(tokens))
    for name in dict.fromkeys(row["name"] for row in rows):
        gains = {row["tokens"]: row["gain"] for row in rows if row["name"] == name}
        print(f"| {name} | " + " | ".join(f"{gains[t]:.2f}" for t in tokens) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=("80%", "90%", "bfloat16", "training"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokens, seconds = ((1, 16, 128), 0.02) if options.quick else ((1, 4, 16, 128, 1024), 0.1)
    parts = {
        "80%": lambda: blocks("80%", tokens, seconds),
        "90%": lambda: blocks("90%", tokens, seconds),
        "bfloat16": lambda: halves(tokens, seconds),
        "training": lambda: training("90%", (64, 512), seconds),
    }
    file = HERE / "results" / f"blocks-{native.isa()}.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name, part in parts.items():
        if options.only in (None, name):
            results[name] = part()
            show(name, results[name])
    if not options.quick:
        lines = ",\n".join(
            f"{json.dumps(k)}: [\n" + ",\n".join(map(json.dumps, rows)) + "\n]" for k, rows in results.items()
        )
        file.write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
