"""What a call costs beyond its kernel, and what importing gossamer costs beyond importing torch.

``F.linear`` with a sparse weight is timed against its kernel on the same arrays with the same bias, both in one
process, interleaved, one thread: CPU time, minimum of many rounds.

- **packed**: a layer as ``pack_`` leaves it (768 x 768 at 95 %, one token, inputs of two and three dimensions). The
  kernel is its torch operator, called as a user would. The aims: without gradients at most 3 us over the kernel; with
  gradients recorded, at most 10 us more than dense ``F.linear`` pays for recording.
- **formats without kernels of their own**: a matrix so small that the kernel (``kernels.csr``, below torch's
  dispatcher) takes little.

Run ``python benchmarks/overhead.py``; it writes ``benchmarks/results/overhead.json``.
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
from gossamer import native
from gossamer.kernels.csr.operators import spmm
from gossamer.kernels.rows.operators import rows_of
from gossamer.ops.product import product

RESULTS = Path(__file__).parent / "results" / "overhead.json"
IMPORT = """
import time
start = time.perf_counter(); import torch
middle = time.perf_counter(); import gossamer
print((middle - start) * 1e3, (time.perf_counter() - middle) * 1e3)
"""


def microseconds(functions: dict[str, Callable[[], object]], rounds: int = 40, calls: int = 200) -> dict[str, float]:
    """Minimum CPU time of a call of each function, interleaved."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.thread_time()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (time.thread_time() - start) / calls * 1e6)
    return best


def packed(size: int = 768) -> dict[str, float]:
    """A packed layer and one token: its operator, F.linear and product without gradients, recorded, and dense."""
    native.load()
    weight = gs.sparsify(torch.randn(size, size), "95%", gs.formats.PackedCSR())
    x, bias, dense = torch.randn(1, size), torch.zeros(size), weight.to_dense()
    three, values, structure = x[None], weight.values(), weight.structure
    arrays, sizes = rows_of(structure)
    with torch.no_grad():
        found = microseconds(
            {
                "kernel": lambda: torch.ops.gossamer.rows_forward.default(*arrays, values, x, bias, *sizes, 0),
                "linear": lambda: F.linear(x, weight, bias),
                "linear, 3-D": lambda: F.linear(three, weight, bias),
                "product": lambda: product(x, values, structure, bias),
                "dense torch": lambda: F.linear(x, dense, bias),
            }
        )
    parameter, other, tracked = torch.nn.Parameter(weight), torch.nn.Parameter(dense), bias.clone().requires_grad_()
    trained = values.clone().requires_grad_()
    return found | microseconds(
        {
            "linear, gradients recorded": lambda: F.linear(x, parameter, tracked),
            "linear, 3-D, gradients recorded": lambda: F.linear(three, parameter, tracked),
            "product, gradients recorded": lambda: product(x, trained, structure, tracked),
            "dense torch, gradients recorded": lambda: F.linear(x, other, tracked),
        }
    )


def summary(times: dict[str, float]) -> str:
    """Say what calls cost beyond their kernel."""
    kernel, recorded = times["kernel"], times["dense torch, gradients recorded"] - times["dense torch"]
    over = {name: times[name] - kernel for name in times if name.startswith(("linear", "product"))}
    lines = [f"  {name}: {value:+.1f} us over the kernel" for name, value in over.items()]
    return "\n".join([*lines, f"  dense F.linear pays {recorded:.1f} us for recording"])


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
    layer = packed()
    found["packed"] = {name: round(value, 1) for name, value in layer.items()}
    print("packed   " + "  ".join(f"{name} {value:.1f} us" for name, value in layer.items()))
    print(summary(layer))
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
