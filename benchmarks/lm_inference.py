"""Inference time of the nets of the language-model benchmark: one token on a CPU, or one and many on a GPU.

    python benchmarks/lm_inference.py                  one thread, float32
    python benchmarks/lm_inference.py --device cuda    bfloat16, by CUDA graphs

Masks are random: time depends on where weights are, not on how good they are. Nets are interleaved; on a CPU a time is
the least CPU time of many calls, so that other processes of the machine count as little as possible.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402
from gossamer.app.bench.lm_model import GPT, weights_of  # noqa: E402
from gossamer.app.bench.lm_speed import fastest  # noqa: E402
from gossamer.models.pack import graphs  # noqa: E402

RESULTS = HERE / "results" / "lm-inference.json"
NETS = {
    "dense": (512, ""), "dense, width 416": (416, ""), "dense, width 320": (320, ""),
    "dense, equal weights of 75%": (256, ""), "dense, width 224": (224, ""), "dense, width 192": (192, ""),
    "dense, equal weights": (160, ""),
    "75%": (512, "75%"), "90%": (512, "90%"), "95%": (512, "95%"), "2:4": (512, "2:4"), "2:8": (512, "2:8"),
    "all:2:8": (512, "all:2:8"), "fan-in 90%": (512, "fan-in 90%"), "block 4x4 90%": (512, "block 4x4 90%"),
}  # fmt: skip
#: Those that a GPU has a kernel for, and dense ones beside them.
ON_A_GPU = (
    "dense", "dense, width 416", "dense, width 320", "dense, equal weights of 75%", "dense, width 192",
    "dense, equal weights", "90%", "2:4", "all:2:8",
)  # fmt: skip
#: Sequences and their lengths.
INPUTS = {"1 token": (1, 1), "64 x 256 tokens": (64, 256)}


def net(width: int, how: str, example: Tensor) -> tuple[nn.Module, int]:
    """Return a net for inference, packed if it is sparse, and its number of weights."""
    torch.manual_seed(0)
    model = GPT(width).eval()
    if how:
        gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), how).close()
    count = weights_of(model)
    if example.is_cuda:
        model.to("cuda", torch.bfloat16)
    if how:
        gs.pack_(model, example)
    return model, count


@torch.no_grad()
def measure(rounds: int = 60) -> list[dict[str, Any]]:
    """Return milliseconds of a call for each net, on one thread of a CPU."""
    torch.set_num_threads(1)
    token = torch.zeros(1, 1, dtype=torch.long)
    made = {name: net(*how, token) for name, how in NETS.items()}
    times = fastest({name: functools.partial(model, token) for name, (model, _) in made.items()}, rounds)
    return [{"name": name, "weights": made[name][1], "ms": round(ms, 3)} for name, ms in times.items()]


@torch.no_grad()
def measure_gpu() -> list[dict[str, Any]]:
    """Return milliseconds of a CUDA graph for each net and input, on a GPU."""
    rows: dict[str, dict[str, Any]] = {}
    for kind, size in INPUTS.items():
        tokens = torch.randint(256, size, device="cuda")
        made = {name: net(*NETS[name], tokens) for name in ON_A_GPU}
        calls = {name: [functools.partial(model, tokens)] for name, (model, _) in made.items()}
        for name, seconds in graphs.replayed(calls).items():
            row = rows.setdefault(name, {"name": name, "weights": made[name][1]})
            row[f"ms, {kind}"] = round(1e3 * seconds, 4)
    return list(rows.values())


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    rows, key = (measure(), "rows") if arguments.device == "cpu" else (measure_gpu(), "gpu rows")
    for row in rows:
        print(row)
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    version = {"torch": torch.__version__} if key == "rows" else {"gpu": torch.cuda.get_device_name()}
    arguments.out.write_text(json.dumps({**found, **version, key: rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
