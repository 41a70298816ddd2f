"""What a sparse model costs beyond its GPU work: compiled and eager calls, and training steps, against dense.

- **compiled**: four MLP blocks (4096 - 14336 - 4096, bf16, all:2:8, packed) and 8 tokens under ``torch.compile``,
  default and ``reduce-overhead``: wall time of a call, and its GPU time by a CUDA graph of the eager calls. A model has
  no overhead of its own if the gain in wall time is that in GPU time.
- **eager**: ``F.linear`` of one packed layer against dense ``F.linear``, inputs of two and three dimensions, CPU time
  of a call while the GPU is behind, without and with gradients recorded.
- **training**: a step of a transformer of 6 layers (forward, backward, AdamW), masked at 90 % against dense, AdamW as
  it comes, foreach and fused, eager and compiled.

Contenders are interleaved; times are the median of rounds. Run ``python benchmarks/overhead_gpu.py``; it writes
``benchmarks/results/overhead-gpu.json``, and ``--table`` the table of the docs from that.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer as gs

RESULTS = Path(__file__).parent / "results" / "overhead-gpu.json"
TABLE = Path(__file__).parent.parent / "docs" / "explanation" / "overhead-gpu-table.md"
Calls = dict[str, Callable[[], Any]]


def wall(calls: Calls, rounds: int = 15, repeat: int = 20) -> dict[str, float]:
    """Median microseconds of a call, the GPU's work included."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / repeat * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def on_gpu(calls: Calls) -> dict[str, float]:
    """Median microseconds that the GPU works for a call: a CUDA graph of ten of them."""
    graphs: Calls = {}
    for name, call in calls.items():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(10):
                call()
        graphs[name] = graph.replay
    return {name: us / 10 for name, us in wall(graphs, repeat=5).items()}


class Mlp(nn.Module):
    """A residual MLP block."""

    def __init__(self, width: int = 4096, inner: int = 14336) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x plus the block's output."""
        return x + self.down(F.gelu(self.up(x)))


def compiled() -> dict[str, Any]:
    """Wall and GPU time of four MLP blocks, dense and packed."""
    dense = nn.Sequential(*(Mlp() for _ in range(4))).to("cuda", torch.bfloat16).eval()
    sparse = gs.sparsify_(copy.deepcopy(dense), gs.VNM("all", 2, 8), format=gs.formats.PackedVNM("all", 2, 8))
    x = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    out: dict[str, Any] = {}
    with torch.inference_mode():
        models = {"dense": dense, "sparse": sparse}
        out["gpu"] = on_gpu({name: lambda m=m: m(x) for name, m in models.items()})
        out["eager"] = wall({name: lambda m=m: m(x) for name, m in models.items()})
        for mode in ("default", "reduce-overhead"):
            out[mode] = {name: _compiled_alone(m, mode, x) for name, m in models.items()}
    return out


def _compiled_alone(model: nn.Module, mode: str, x: Tensor) -> float:
    """Wall time of a compiled model, with no other in torch's cache: each one there costs a check of its guards."""
    torch._dynamo.reset()
    run = torch.compile(model, mode=mode)
    for _ in range(5):
        run(x)
    return wall({mode: lambda: run(x)})[mode]


def eager() -> dict[str, Any]:
    """CPU time of calls of one layer that the GPU finishes at its leisure."""
    layer = nn.Linear(1024, 1024).to("cuda", torch.bfloat16)
    packed = gs.sparsify_(copy.deepcopy(layer), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    out: dict[str, Any] = {}
    for name, shape in (("2-D", (8, 1024)), ("3-D", (2, 4, 1024))):
        x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        weight = packed.weight
        calls: Calls = {
            "dense F.linear": lambda x=x: F.linear(x, layer.weight, layer.bias),
            "sparse F.linear": lambda x=x, w=weight: F.linear(x, w, layer.bias),
            "dense module": lambda x=x: layer(x),
            "sparse module": lambda x=x: packed(x),
        }
        with torch.no_grad():
            out[f"{name}, no gradient"] = cpu(calls)
        out[f"{name}, recorded"] = cpu(calls)
    return out


def cpu(calls: Calls, rounds: int = 30, repeat: int = 50) -> dict[str, float]:
    """Minimum CPU microseconds of a call; the GPU is waited for between rounds."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeat):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / repeat * 1e6)
    torch.cuda.synchronize()
    return best


def training() -> dict[str, Any]:
    """Milliseconds of a training step, dense and masked at 90 %."""
    out: dict[str, Any] = {}
    for options in ({}, {"foreach": True}, {"fused": True}):
        for compiles in (False, True):
            steps = {name: _step(sparse, options, compiles) for name, sparse in (("dense", False), ("masked", True))}
            for step in steps.values():
                for _ in range(4):
                    step()
            found = wall(steps, rounds=9, repeat=5)
            key = f"{next(iter(options), 'default')}{', compiled' if compiles else ''}"
            out[key] = {name: us / 1e3 for name, us in found.items()}
    return out


def _step(sparse: bool, options: dict[str, bool], compiles: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(512, 8, 2048, 0.0, batch_first=True, norm_first=True)
    model = nn.TransformerEncoder(block, 6, enable_nested_tensor=False).cuda()
    if sparse:
        gs.sparsify_(model, "90%")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)
    x = torch.randn(16, 128, 512, device="cuda")
    run: Any = torch.compile(model) if compiles else model

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(x).float().square().mean()
        loss.backward()
        optimizer.step()

    return step


def table(result: dict[str, Any]) -> str:
    """Return what was measured as a table: dense, sparse, and dense over sparse."""
    found = result["compiled"]
    rows = [
        ("four MLP blocks, 8 tokens: GPU work, us", found["gpu"]),
        ("... eager", found["eager"]),
        ("... `torch.compile`", found["default"]),
        ('... `mode="reduce-overhead"`', found["reduce-overhead"]),
    ]
    for case, times in result["eager"].items():
        for kind in ("F.linear", "module"):
            pair = {"dense": times[f"dense {kind}"], "sparse": times[f"sparse {kind}"]}
            rows.append((f"one layer, {kind}, {case}: CPU time, us", pair))
    for case, times in result["training"].items():
        rows.append((f"training step, AdamW {case}, ms", {"dense": times["dense"], "sparse": times["masked"]}))
    lines = ["| | dense | sparse | dense / sparse |", "|---|--:|--:|--:|"]
    for name, pair in rows:
        lines.append(f"| {name} | {pair['dense']:.1f} | {pair['sparse']:.1f} | {pair['dense'] / pair['sparse']:.2f} |")
    return "\n".join(lines)


def main() -> None:
    """Measure everything, print it and write it; with ``--table``, write the table of what was measured before."""
    if "--table" in sys.argv:
        TABLE.write_text(table(json.loads(RESULTS.read_text())) + "\n")
        return
    torch.set_num_threads(4)
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    target = Path(os.environ.get("OUT", RESULTS.parent)) / RESULTS.name
    for part in (compiled, eager, training):
        result[part.__name__] = part()
        print(part.__name__, json.dumps(result[part.__name__], indent=1), flush=True)
        target.write_text(json.dumps(result, indent=1) + "\n")  # after each part: a lease may end before the last


if __name__ == "__main__":
    main()
