"""What a call costs beyond its kernel, and what importing gossamer costs beyond importing torch.

``F.linear`` with a sparse weight is timed against its kernel (``kernels.csr``, below torch's dispatcher)
on the same arrays with the same bias added, both in one process, interleaved, on a matrix so small that the kernel
itself takes little. Minimum of many rounds, one thread. Run ``python benchmarks/overhead.py``; it writes
``benchmarks/results/overhead.json``.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import gossamer as gs
from gossamer.kernels.csr.operators import spmm

RESULTS = Path(__file__).parent / "results" / "overhead.json"
IMPORT = """
import time
start = time.perf_counter(); import torch
middle = time.perf_counter(); import gossamer
print((middle - start) * 1e3, (time.perf_counter() - middle) * 1e3)
"""


def microseconds(functions: dict[str, Callable[[], object]], rounds: int = 40, calls: int = 200) -> dict[str, float]:
    """Minimum time of a call of each function, interleaved."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (time.perf_counter() - start) / calls * 1e6)
    return best


def calls(format: gs.Format) -> dict[str, float]:
    """The kernel, F.linear without and with gradients, and dense torch."""
    weight = gs.sparsify(torch.randn(64, 32), "70%", format)
    x, bias = torch.randn(5, 32), torch.zeros(64)
    matrix, values = weight.structure.matrix(), weight.values()
    dense, parameter, tracked = weight.to_dense(), torch.nn.Parameter(weight), torch.zeros(64, requires_grad=True)
    values = values.reshape(-1) if matrix.index is None else values.reshape(-1)[matrix.index]
    sizes = (32, 64) if matrix.transposed else (64, 32)

    def kernel() -> torch.Tensor:
        return spmm(matrix.pos, matrix.crd, values, *sizes, matrix.transposed, x.t(), True) + bias

    with torch.no_grad():
        found = microseconds(
            {
                "kernel": kernel,
                "linear": lambda: F.linear(x, weight, bias),
                "dense torch": lambda: F.linear(x, dense, bias),
            }
        )
    return found | microseconds({"linear, gradients recorded": lambda: F.linear(x, parameter, tracked)})


def imports(times: int = 5) -> tuple[float, float]:
    """Milliseconds to import torch, and gossamer after it, with byte code: minimum of a few fresh processes."""
    command = [sys.executable, "-c", IMPORT]
    with tempfile.TemporaryDirectory() as folder:  # byte code of the first process serves the others
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": folder}
        options: dict[str, Any] = {"capture_output": True, "text": True, "check": True, "env": environment}
        runs = [subprocess.run(command, **options) for _ in range(times)]
    pairs = [tuple(map(float, run.stdout.split())) for run in runs]
    return min(p[0] for p in pairs), min(p[1] for p in pairs)


def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    found: dict[str, object] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    for format in (gs.CSR(), gs.CSC(), gs.COO(), gs.ELL()):
        times = calls(format)
        found[repr(format)] = {name: round(value, 1) for name, value in times.items()}
        print(f"{format!r:8} " + "  ".join(f"{name} {value:.1f} us" for name, value in times.items()))
    torch_ms, gossamer_ms = imports()
    found["import"] = {"torch ms": round(torch_ms), "gossamer ms": round(gossamer_ms)}
    print(f"import torch {torch_ms:.0f} ms, gossamer {gossamer_ms:.0f} ms more")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
