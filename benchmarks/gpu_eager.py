"""CPU time of an eager call of each kind of layer on a GPU, whose own work is shorter.

    python benchmarks/gpu_eager.py             writes results/gpu-eager.json and the table of the docs
    python benchmarks/gpu_eager.py --tables    the table again, from results/gpu-eager.json

Layers of 512 x 512 in bf16, x [tokens, 1, 512], ``torch.inference_mode``, Python's garbage collector off. Each figure
is the fastest of 25 turns of 200 calls, which are not waited for.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.gpu_plot import DOCS  # noqa: E402
from gossamer.formats import PackedBitmap, PackedVNM  # noqa: E402
from gossamer.kernels.bitmap.plan import TOKENS as BITMAP_TOKENS  # noqa: E402

SIZE, TOKENS = 512, (1, 64)
RESULTS = HERE / "results" / "gpu-eager.json"
KINDS = ("dense", "2:4", "2:8", "2:4 fp8", "2:8 fp8", "dense fp8", "bitmap 50 %")


class Three(nn.Module):
    """Layers that read the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.q(x), self.k(x), self.v(x)


def made(model: nn.Module, kind: str) -> nn.Module:
    """A model whose layers are of a kind."""
    model = model.cuda().bfloat16().requires_grad_(False)
    if kind == "bitmap 50 %":
        gs.sparsify_(model, "50%", format=PackedBitmap())
    elif kind == "dense fp8":
        gs.quantize_(model, "fp8")
    elif kind != "dense":
        m = int(kind[2])
        small = kind.endswith("fp8")
        gs.sparsify_(model, gs.VNM("all", 2, m), format=gs.Masked() if small else PackedVNM("all", 2, m))
        if small:
            gs.quantize_(model, "fp8")
    return model


def fastest(call: Callable[[], Any], calls: int = 200, turns: int = 25) -> float:
    """Microseconds of a call."""
    for _ in range(20):
        call()
    gc.collect()
    gc.disable()
    found = []
    for _ in range(turns):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - start) / calls * 1e6)
    gc.enable()
    return round(min(found), 1)


def measured() -> dict[str, dict[str, float]]:
    """Microseconds of each kind of layer, by tokens."""
    models = {kind: made(nn.Sequential(nn.Linear(SIZE, SIZE, bias=False)), kind)[0] for kind in KINDS}  # type: ignore[index]
    for kind in ("dense", "2:4", "2:4 fp8"):
        models[f"q, k, v {kind}"] = made(Three(), kind)
        gs.nn.group_(models[f"q, k, v {kind}"], torch.randn(4, SIZE, device="cuda").bfloat16())
    found: dict[str, dict[str, float]] = {name: {} for name in models}
    with torch.inference_mode():
        for tokens in TOKENS:
            x = torch.randn(tokens, 1, SIZE, device="cuda").bfloat16()
            for name, model in models.items():
                if not name.startswith("bitmap") or tokens <= BITMAP_TOKENS:
                    found[name][str(tokens)] = fastest(lambda model=model, x=x: model(x))  # type: ignore[misc]
    return found


def table(us: dict[str, dict[str, float]]) -> str:
    """Markdown: a line for each kind, microseconds by tokens."""
    heads = [str(tokens) for tokens in TOKENS]
    lines = [f"| tokens | {' | '.join(heads)} |", "|---|" + "--:|" * len(heads)]
    for name, each in us.items():
        lines.append(f"| {name} | " + " | ".join(f"{each[head]:.1f}" if head in each else "" for head in heads) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true")
    if not parser.parse_args().tables:
        found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "us": measured()}
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    us = json.loads(RESULTS.read_text())["us"]
    print(table(us))
    (DOCS / "gpu-eager-table.md").write_text(table(us))


if __name__ == "__main__":
    main()
