"""Training by transposable 2:4: an MLP block, forward and backward, against dense, with the packing of every step.

    python benchmarks/two_ways.py            on a GPU
    python benchmarks/two_ways.py --table    only the table of the docs

4096 - 14336 - 4096, bfloat16, 8,192 tokens. The sparse block packs its weights and their transposes at every step, and
chooses masks every 40 steps, whose cost is shared by these. Contenders are interleaved; times are medians of CUDA
events. Writes benchmarks/results/two-ways.json.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gossamer as gs
from gossamer.kernels.vnm.two_ways import TwoWays

RESULTS = Path(__file__).with_name("results") / "two-ways.json"
TABLE = Path(__file__).parents[1] / "docs" / "explanation" / "two-ways-table.md"
REFRESH = 40


def timed(calls: dict[str, Callable[[], Any]], rounds: int = 20, warm: int = 3) -> dict[str, float]:
    """Return median milliseconds of each call, contenders interleaved."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(warm + rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= warm:
                found[name].append(start.elapsed_time(end))
    return {name: round(statistics.median(each), 3) for name, each in found.items()}


def measure(width: int = 4096, hidden: int = 14336, tokens: int = 8192) -> dict[str, Any]:
    """Return times of one block, and the errors of its results."""
    torch.manual_seed(0)
    half = {"device": "cuda", "dtype": torch.bfloat16}
    up, down = (torch.randn(o, i, **half) * i**-0.5 for o, i in ((hidden, width), (width, hidden)))  # type: ignore[call-overload]
    masks = [gs.TransposableNM(2, 4).select(w.float().abs()) for w in (up, down)]
    weights = [nn.Parameter(w * mask) for w, mask in zip((up, down), masks, strict=True)]
    packed = [TwoWays.of(w.detach(), mask, torch.bfloat16) for w, mask in zip(weights, masks, strict=True)]
    x = torch.randn(tokens, width, requires_grad=True, **half)  # type: ignore[call-overload]
    grad = torch.randn(tokens, width, **half)  # type: ignore[call-overload]

    def dense() -> Tensor:
        return nn.functional.linear(nn.functional.gelu(nn.functional.linear(x, weights[0])), weights[1])

    def sparse() -> Tensor:
        return packed[1].linear(nn.functional.gelu(packed[0].linear(x, weights[0])), weights[1])

    def step(block: Callable[[], Tensor]) -> list[Tensor]:
        x.grad = weights[0].grad = weights[1].grad = None
        out = block()
        out.backward(grad)
        return [out.detach(), x.grad, weights[0].grad, weights[1].grad]  # type: ignore[list-item]

    def fill() -> None:
        for w, one in zip(weights, packed, strict=True):
            one.fill(w.detach())

    def choose() -> None:
        for w, one in zip(weights, packed, strict=True):
            one.choose(gs.TransposableNM(2, 4).pick(w.detach().float().abs()))

    def sparse_step() -> None:
        fill()
        step(sparse)

    wanted, ours = step(dense), step(sparse)
    errors = [float((a - b).float().norm() / b.float().norm()) for a, b in zip(ours, wanted, strict=True)]
    first = {"dense linear": lambda: x.detach() @ weights[0].detach().t(),
             "sparse linear": lambda: packed[0].linear(x.detach(), weights[0].detach())}  # fmt: skip
    found = timed({"dense": lambda: step(dense), "sparse": sparse_step, "fill": fill, **first})
    found |= timed({"choose": choose}, 3, 1)
    whole = found["sparse"] + found["choose"] / REFRESH
    sizes = {"width": width, "hidden": hidden, "tokens": tokens, "refresh": REFRESH}
    return {**sizes, "ms": found, "sparse with choices": round(whole, 3), "gain": round(found["dense"] / whole, 3),
            "errors": [round(e, 5) for e in errors], "device": torch.cuda.get_device_name()}  # fmt: skip


def table(found: dict[str, Any]) -> str:
    """Return what the docs include."""
    ms, whole = found["ms"], found["sparse with choices"]
    size = f"{found['width']} - {found['hidden']} - {found['width']}"
    lines = [
        f"*{found['device']}, an MLP block {size} with GELU, {found['tokens']:,} tokens, bfloat16; made by",
        "`benchmarks/two_ways.py`.*", "", "| | ms |", "|---|--:|",
        f"| dense, forward and backward | {ms['dense']:.2f} |",
        f"| 2:4 both ways, forward and backward, with packing | {ms['sparse']:.2f} |",
        f"| of that, packing | {ms['fill']:.2f} |",
        f"| choice of both masks | {ms['choose']:.1f} |",
        f"| 2:4 both ways with a choice every {found['refresh']} steps | {whole:.2f} ({found['gain']:.2f}x) |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--table" not in sys.argv:
        results = measure()
        print(results)
        (Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS).write_text(json.dumps(results, indent=1) + "\n")
    TABLE.write_text(table(json.loads(RESULTS.read_text())))
