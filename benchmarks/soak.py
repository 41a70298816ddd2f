"""Memory over many calls: does a process that runs for long grow?

    python benchmarks/soak.py [--calls N] [--task NAME ...] [--out FILE]

Each task is repeated in a process of its own. After a tenth of the calls, when kernels are loaded and caches have what
they keep, resident memory is taken as the start; then again in the middle and at the end. Tensors are small, so that
what is left behind by each call adds up sooner than what a call needs.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the line above
from gossamer.formats import (  # noqa: E402
    Condensed,
    PackedBitmap,
    PackedCSR,
    PackedGroupedNM,
    PackedNear,
    PackedNM,
    PackedVNM,
)

RESULT = HERE / "results" / "soak.json"
CALLS = 20_000
Task = Callable[[int], object]


def layer(pattern: str, format: gs.Format) -> Task:
    """Forward and backward of a linear layer, whose values change."""
    model = gs.sparsify_(torch.nn.Linear(64, 64), pattern, format=format)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    x = torch.randn(5, 64)

    def call(n: int) -> None:
        optimizer.zero_grad()
        given = x[: 1 + n % 5].clone().requires_grad_()
        model(given).square().sum().backward()
        optimizer.step()

    return call


def einsum() -> Task:
    """Products of matrices that have another pattern in each call, with gradients."""
    forms = itertools.cycle((gs.CSR(), gs.COO(), gs.CSC(), gs.DCSR(), gs.ELL()))

    def call(n: int) -> None:
        generator = torch.Generator().manual_seed(n)
        shape = (16 + n % 7, 24)
        dense = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.2)
        a = gs.from_dense(dense, next(forms)).requires_grad_()
        b = torch.randn(24, 8, generator=generator)
        gs.einsum("ik,kj->ij", a, b).sum().backward()

    return call


def reductions() -> Task:
    """Operators that are computed from stored entries, on patterns that change."""

    def call(n: int) -> None:
        generator = torch.Generator().manual_seed(n)
        dense = torch.randn(12, 9, generator=generator)
        t = gs.sparsify(dense, "50%", format=gs.CSR())
        (t.max(1).values.sum() + t.sum(0).sum() + (t * t).sum() + t[2:5].sum()).item()

    return call


def surgery() -> Task:
    """A model that is made sparse, packed and dense again, with an optimizer that follows."""
    model = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ReLU(), torch.nn.Linear(48, 48))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(4, 48)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    def call(n: int) -> None:
        gs.sparsify_(model, ("75%", "2:4", "90%")[n % 3])
        step()
        gs.pack_(model, tune=False, quiet=True)
        step()
        gs.densify_(model)

    return call


def files() -> Task:
    """A model that is saved and loaded."""
    model = gs.sparsify_(torch.nn.Linear(48, 48), "75%", format=gs.CSR())
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)

    def call(n: int) -> None:
        path = folder / f"{n % 2}.safetensors"
        gs.save(model, path)
        gs.load(model, path)

    return call


TASKS: dict[str, Callable[[], Task]] = {
    "PackedCSR": lambda: layer("90%", PackedCSR()),
    "PackedCSR(240)": lambda: layer("90%", PackedCSR(240)),
    "PackedNear": lambda: layer("50%", PackedNear()),
    "Condensed": lambda: layer("fan-in 90%", Condensed()),
    "PackedNM(2, 4)": lambda: layer("2:4", PackedNM(2, 4)),
    "PackedGroupedNM(1, 4, 4)": lambda: layer("1:4:g4", PackedGroupedNM(1, 4, 4)),
    "PackedVNM(16, 2, 8)": lambda: layer("16:2:8", PackedVNM(16, 2, 8)),
    "PackedBitmap": lambda: layer("50%", PackedBitmap()),
    "BSR((4, 4))": lambda: layer("block 4x4 80%", gs.BSR((4, 4))),
    "CSR": lambda: layer("90%", gs.CSR()),
    "Masked": lambda: layer("90%", gs.Masked()),
    "einsum, patterns that change": einsum,
    "operators, patterns that change": reductions,
    "sparsify, pack, densify": surgery,
    "save, load": files,
}


def resident() -> float:
    """Return the resident memory of this process in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def repeat(task: Task, calls: int) -> dict[str, Any]:
    """Call a task, and return the memory at the start, in the middle and at the end."""
    marks = (calls // 10, calls * 55 // 100, calls)
    found, started = [], time.process_time()
    for n in range(calls):
        task(n)
        if n + 1 in marks:
            found.append(round(resident(), 1))
    return {
        "calls": calls, "start_mb": found[0], "middle_mb": found[1], "end_mb": found[2],
        "growth_mb": round(found[2] - found[0], 1), "cpu_s": round(time.process_time() - started, 1),
    }  # fmt: skip


def main() -> None:
    """Run each task in a process of its own, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--task", action="append", choices=list(TASKS))
    parser.add_argument("--here", action="store_true", help="run the one task in this process, and print JSON")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = options.task or list(TASKS)
    if options.here:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        print(json.dumps(repeat(TASKS[names[0]](), options.calls)))
        return
    rows = {}
    for name in names:
        command = [sys.executable, __file__, "--here", "--task", name, "--calls", str(options.calls)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        rows[name] = json.loads(answer.stdout.splitlines()[-1])
        print(name, *rows[name].values(), sep="  ", flush=True)
    machine = {"torch": torch.__version__, "gossamer": gs.__version__, "python": platform.python_version()}
    if options.out or not options.task:
        (options.out or RESULT).write_text(json.dumps({"machine": machine, "tasks": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
