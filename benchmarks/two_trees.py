"""Has anything become slower? The same calls in this tree and in another commit, in turns.

    python benchmarks/two_trees.py 1d2e3f4                  a table: microseconds there and here, and their ratio
    python benchmarks/two_trees.py 1d2e3f4 --only layer     only some of the calls
    python benchmarks/two_trees.py ../older --device cuda   the layers on a GPU; the other tree is a folder

Only public names are used, so that an older commit can run them. Each turn is a process of its own, first one tree,
then the other; the fastest turn of each counts, in processor time of one thread, or on a GPU by CUDA graphs. The ratio
is above 1 where this tree is faster. The results are in results/two-trees.json and two-trees-gpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = {"cpu": HERE / "results" / "two-trees.json", "cuda": HERE / "results" / "two-trees-gpu.json"}
Call = tuple[str, Callable[[], Any]]


def layers() -> Iterator[Call]:
    """Packed layers, forward, and forward with backward."""
    import torch

    import gossamer as gs

    kinds = {"50%": "50%", "90%": "90%", "2:4": "2:4", "1:10": "1:10", "1:4:g16": "1:4:g16", "fan-in 90%": "fan-in 90%"}
    for name, pattern in kinds.items():
        for tokens in (1, 128, 1024):
            torch.manual_seed(0)
            model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(768, 3072)), pattern)
            x = torch.randn(tokens, 768)
            gs.pack_(model, x, tune=False)
            yield f"layer {name}, {tokens} tokens", _without_gradients(model, x)
            if tokens == 128:
                yield f"layer {name}, {tokens} tokens, with backward", _with_gradients(model, x)


def _without_gradients(model: Any, x: Any) -> Callable[[], Any]:
    import torch

    def call() -> Any:
        with torch.no_grad():
            return model(x)

    return call


def _with_gradients(model: Any, x: Any) -> Callable[[], Any]:
    x = x.clone().requires_grad_()

    def call() -> Any:
        model.zero_grad()
        model(x).sum().backward()

    return call


def gpu_layers() -> Iterator[Call]:
    """Packed layers on a GPU, forward, in bfloat16."""
    import torch

    import gossamer as gs

    for name, pattern in {"2:4": "2:4", "all:2:8": "all:2:8", "128:2:16": "128:2:16"}.items():
        for tokens in (1, 16, 64, 512, 4096):
            torch.manual_seed(0)
            model = gs.sparsify_(torch.nn.Sequential(torch.nn.Linear(4096, 14336, bias=False)), pattern)
            model = model.cuda().bfloat16()
            x = torch.randn(tokens, 4096, device="cuda", dtype=torch.bfloat16)
            gs.pack_(model, x, tune=False)
            yield f"GPU layer {name}, {tokens} tokens", _without_gradients(model, x)


def expressions() -> Iterator[Call]:
    """Compiled expressions over sparse tensors, with patterns that are known."""
    import torch

    import gossamer as gs

    torch.manual_seed(0)
    a = gs.sparsify(torch.randn(4000, 4000), "99%", format=gs.CSR())
    b = gs.sparsify(torch.randn(4000, 4000), "99%", format=gs.CSR())
    x, v, q, k = torch.randn(4000, 64), torch.randn(4000), torch.randn(4000, 64), torch.randn(4000, 64)
    yield "einsum SpMV", lambda: gs.einsum("ij,j->i", a, v)
    yield "einsum SpMM", lambda: gs.einsum("ik,kj->ij", a, x)
    yield "einsum SpGEMM", lambda: gs.einsum("ik,kj->ij", a, b)
    yield "einsum add", lambda: gs.einsum("ij + ij -> ij", a, b)
    yield "einsum SDDMM", lambda: gs.einsum("ij,id,jd->ij", a, q, k)
    yield "convert CSR to CSC", lambda: a.to_format(gs.CSC())
    yield "convert CSR to COO", lambda: a.to_format(gs.COO())


def training() -> Iterator[Call]:
    """Steps of masked training, and the selection of masks."""
    import torch

    import gossamer as gs

    for name in ("Static", "RigL", "SRigL", "SRSTE"):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        options: dict[str, Any] = {} if name == "SRSTE" else {"sparsity": 0.9, "every": 10, "until": 10**6}
        method = getattr(gs.train, name)(model, optimizer, **options)
        yield f"ten steps of {name}", _steps(model, optimizer, method, torch.randn(64, 784))
    weight = torch.randn(768, 3072)
    for pattern in ("90%", "2:4", "1:4:g16", "block 4x4 80%", "64:2:8"):
        yield f"select {pattern}", _selection(gs, weight, pattern)


def _steps(model: Any, optimizer: Any, method: Any, x: Any) -> Callable[[], Any]:
    def call() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            method.step()

    return call


def _selection(gs: Any, weight: Any, pattern: str) -> Callable[[], Any]:
    return lambda: gs.sparsify(weight, pattern, format=gs.Masked())


def fastest(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of processor time of the fastest call; short calls are timed in groups."""
    call(), call(), call()
    start = time.process_time()
    call()
    group = max(1, int(2e-4 / max(time.process_time() - start, 1e-7)))
    best, end = float("inf"), time.process_time() + seconds
    while time.process_time() < end:
        start = time.process_time()
        for _ in range(group):
            call()
        best = min(best, (time.process_time() - start) / group)
    return best * 1e6


def fastest_graph(call: Callable[[], Any], seconds: float) -> float:
    """Microseconds of the fastest of several replays of a CUDA graph with 20 calls."""
    import torch

    for _ in range(3):
        call()
    graph, start, stop = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.graph(graph):
        for _ in range(20):
            call()
    best, end = float("inf"), time.monotonic() + seconds
    while time.monotonic() < end:
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        best = min(best, start.elapsed_time(stop) / 20)
    return best * 1e3


def turn(only: str, seconds: float, device: str) -> None:
    """Time all calls in this process, and print them as JSON."""
    import torch

    torch.set_num_threads(1)
    found = {}
    measure = fastest if device == "cpu" else fastest_graph
    for kind in (layers, expressions, training) if device == "cpu" else (gpu_layers,):
        for name, call in kind():
            if only in name:
                found[name] = measure(call, seconds)
    print(json.dumps(found))


def run(source: Path, only: str, seconds: float, device: str) -> dict[str, float]:
    """One turn with the package in ``source``."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, "turn", "--only", only, "--seconds", str(seconds), "--device", device]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def tree(commit: str) -> Iterator[Path]:
    """The sources of a commit, or of a folder."""
    if Path(commit).is_dir():
        yield Path(commit).resolve() / "src"
        return
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit, "src"], cwd=HERE.parent, stdout=subprocess.PIPE, check=True)
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder) / "src"


def compare(commit: str, only: str, turns: int, seconds: float, device: str) -> None:
    """Run turns of both trees, and print and write the fastest."""
    with tree(commit) as other:
        sides = {"there": other, "here": HERE.parent / "src"}
        best: dict[str, dict[str, float]] = {side: {} for side in sides}
        for _ in range(turns):
            for side, source in sides.items():
                for name, value in run(source, only, seconds, device).items():
                    best[side][name] = min(value, best[side].get(name, float("inf")))
    rows = {name: [best["there"][name], best["here"][name]] for name in best["here"] if name in best["there"]}
    for name, (there, here) in rows.items():
        print(f"{name:45s} {there:10.1f} {here:10.1f} {there / here:6.2f}")
    if not only:
        RESULTS[device].write_text(json.dumps({"commit": commit, "turns": turns, "us": rows}, indent=1) + "\n")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="the other tree: a commit, or a folder with src")
    parser.add_argument("--only", default="", help="calls whose name contains this")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each call and turn")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    arguments = parser.parse_args()
    if arguments.commit == "turn":
        turn(arguments.only, arguments.seconds, arguments.device)
    else:
        compare(arguments.commit, arguments.only, arguments.turns, arguments.seconds, arguments.device)


if __name__ == "__main__":
    main()
