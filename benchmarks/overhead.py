"""What a call costs beyond its kernel, and what importing gossamer costs beyond importing torch.

``F.linear`` with a sparse weight is timed against its kernel on the same arrays with the same bias, both in one
process, interleaved, one thread: CPU time, minimum of many rounds.

- **packed**: a layer as ``pack_`` leaves it (768 x 768 at 95 %, one token, inputs of two and three dimensions). The
  kernel is its torch operator, called as a user would.
- **one token**: complete calls of layers of 768 x 768 at 95 %, by ``F.linear`` and as a module, in float32 and int8,
  with one thread and two; the smallest dense layer beside them shows what a call of torch costs. Wall time.
- **a second thread**: layers with one token, one thread and two, in turns: the fastest call, the median, and what nine
  of ten calls stay below. Wall time, so other programs count: first without any, then with one that keeps computing for
  each core.
- **formats without kernels of their own**: a matrix so small that the kernel (``kernels.csr``, below torch's
  dispatcher) takes little.

Run ``python benchmarks/overhead.py``; it writes ``benchmarks/results/overhead.json``. With ``--second-thread`` it
replaces only that part; with ``--machine xeon`` the file is ``overhead-xeon.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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


def microseconds(
    functions: dict[str, Callable[[], object]],
    rounds: int = 40,
    calls: int = 200,
    clock: Callable[[], float] = time.thread_time,
) -> dict[str, float]:
    """Minimum time of a call of each function, interleaved."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            start = clock()
            for _ in range(calls):
                function()
            best[name] = min(best[name], (clock() - start) / calls * 1e6)
    return best


def one_token(size: int = 768) -> dict[str, float]:
    """Calls of layers with one token, as a user writes them."""
    dense, tiny = torch.nn.Linear(size, size), torch.nn.Linear(16, 16)
    x, small = torch.randn(1, size), torch.randn(1, 16)
    found: dict[str, Callable[[], object]] = {
        "dense module": lambda: dense(x),
        "dense F.linear": lambda: F.linear(x, dense.weight, dense.bias),
        "dense module, 16 x 16": lambda: tiny(small),
        "dense F.linear, 16 x 16": lambda: F.linear(small, tiny.weight, tiny.bias),
    }
    formats = {"95%": gs.formats.PackedCSR(), "1:20": gs.formats.PackedNM(1, 20)}
    for pattern, format in formats.items():
        layer: Any = gs.sparsify_(torch.nn.Linear(size, size), pattern, format=format)
        eight = gs.quantize_(gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(size, size)), pattern), "int8")[0]
        weight, bias = layer.weight.detach(), layer.bias.detach()
        found[f"{pattern} module"] = lambda layer=layer: layer(x)
        found[f"{pattern} F.linear"] = lambda weight=weight, bias=bias: F.linear(x, weight, bias)
        found[f"{pattern} int8 module"] = lambda eight=eight: eight(x)
    with torch.no_grad():
        return microseconds(found, calls=50, rounds=200, clock=time.perf_counter)


SHARED = {"1:20": (768, 3072), "1:10": (768, 3072), "95%": (768, 3072), "90%": (3072, 3072)}
SHARED_INT8 = {"50%": (768, 3072), "90%": (3072, 3072), "1:20": (3072, 3072)}


def shared(rounds: int = 40, calls: int = 30) -> dict[str, dict[str, list[float]]]:
    """Layers with one token, and one thread or two: the fastest call, the median and the ninth of ten."""
    layers: dict[str, Any] = {}
    for pattern, (rows, cols) in SHARED.items():
        format = gs.formats.PackedNM(*map(int, pattern.split(":"))) if ":" in pattern else gs.formats.PackedCSR()
        layers[f"{pattern} {rows}x{cols}"] = gs.sparsify_(torch.nn.Linear(cols, rows), pattern, format=format)
    for pattern, (rows, cols) in SHARED_INT8.items():
        model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(cols, rows)), pattern)
        layers[f"{pattern} int8 {rows}x{cols}"] = gs.quantize_(model, "int8")[0]
    times: dict[str, dict[int, list[float]]] = {name: {1: [], 2: []} for name in layers}
    for _, threads in itertools.product(range(rounds), (1, 2)):
        torch.set_num_threads(threads)
        for name, layer in layers.items():
            x = torch.randn(1, layer.in_features)
            for call in range(calls + 4):
                start = time.perf_counter()
                layer(x)
                if call > 3:  # the threads are awake
                    times[name][threads].append((time.perf_counter() - start) * 1e6)
    words = {1: "one thread", 2: "two threads"}
    return {name: {words[n]: _spread(found) for n, found in by.items()} for name, by in times.items()}


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Keep every core busy with another program meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def second_thread() -> dict[str, dict[str, dict[str, list[float]]]]:
    """Layers by one thread and by two, on the machine as it is and on a busy one; printed."""
    found = {}
    for state, others in (("a second thread", contextlib.nullcontext()), ("a second thread, busy machine", busy())):
        with torch.no_grad(), others:
            found[state] = shared()
        print(f"{state}: fastest, median, ninth of ten, us")
        for name, spread in found[state].items():
            print(f"  {name:22} " + "  ".join(f"{words} {values}" for words, values in spread.items()))
    torch.set_num_threads(1)
    return found


def _spread(times: list[float]) -> list[float]:
    ordered = sorted(times)
    return [round(ordered[int(len(ordered) * share)], 1) for share in (0, 0.5, 0.9)]


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--second-thread", action="store_true", help="only this part")
    parser.add_argument("--machine", help="its name in the file of results, if it is another one")
    options = parser.parse_args()
    results = RESULTS.with_stem(f"overhead-{options.machine}") if options.machine else RESULTS
    if options.second_thread:
        results.write_text(json.dumps(json.loads(results.read_text()) | second_thread(), indent=1) + "\n")
        return
    torch.set_num_threads(1)
    found: dict[str, object] = {"torch": torch.__version__, "machine": platform.processor() or platform.machine()}
    layer = packed()
    found["packed"] = {name: round(value, 1) for name, value in layer.items()}
    print("packed   " + "  ".join(f"{name} {value:.1f} us" for name, value in layer.items()))
    print(summary(layer))
    for threads in (1, 2):
        torch.set_num_threads(threads)
        times = one_token()
        found[f"one token, {threads} thread{'s' * (threads > 1)}"] = {n: round(v, 2) for n, v in times.items()}
        print(f"one token, threads: {threads}  " + "  ".join(f"{name} {value:.2f} us" for name, value in times.items()))
    found |= second_thread()
    for format in (gs.CSR(), gs.CSC(), gs.COO(), gs.ELL()):
        times = calls(format)
        found[repr(format)] = {name: round(value, 1) for name, value in times.items()}
        print(f"{format!r:8} " + "  ".join(f"{name} {value:.1f} us" for name, value in times.items()))
    torch_ms, gossamer_ms = imports()
    found["import"] = {"torch ms": round(torch_ms), "gossamer ms": round(gossamer_ms)}
    print(f"import torch {torch_ms:.0f} ms, gossamer {gossamer_ms:.0f} ms more")
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
