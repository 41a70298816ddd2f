"""The compiled kernels against what a user would call instead, and the floors that they must reach.

    python benchmarks/compiler.py [--quick | --large] [--alone] [--out FILE]

SpMM and SpMV against ``torch.sparse`` CSR (with 64-bit indices, as ``to_sparse_csr`` makes it, and with 32-bit ones),
sparse x sparse against scipy (with patterns seen before, and with new ones, which are planned and counted first), SDDMM
against ``torch.sparse.sampled_addmm``, MTTKRP against ``torch.einsum`` on dense tensors; then what a build, a disk hit
and a warm call cost. Calls that are compared take turns, and the fastest of each counts. ``--alone`` times one thread
by its own processor time, which other work on the machine disturbs less. Conversions are in ``conversions.py``.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import scipy.sparse
import torch

import gossamer as gs

RESULT = Path(__file__).parent / "results" / "compiler.json"
FLOORS = {"spmm": 1.5, "spmv": 1.2, "spgemm": 2.0, "spgemm, new patterns": None, "sddmm": 3.0, "mttkrp": 20.0}
AGAINST = {
    "spmm": "torch.sparse CSR", "spmv": "torch.sparse CSR", "spgemm": "scipy", "spgemm, new patterns": "scipy",
    "sddmm": "torch sampled_addmm", "mttkrp": "torch.einsum, dense",
}  # fmt: skip
MATRICES = (
    (2000, 0.001),
    (2000, 0.01),
    (2000, 0.05),
    (2000, 0.2),
    (8000, 0.001),
    (8000, 0.01),
    (8000, 0.05),
    (8000, 0.2),
    (20000, 0.001),
    (20000, 0.01),
    (20000, 0.05),
)  # 20,000 rows with 20 % are 80 million entries, more than the time of this run: --large
QUICK = ((2000, 0.01), (2000, 0.05))
WIDTHS = (32, 128, 512)
CLOCK = time.perf_counter
_LONG = 1.0  # seconds of one turn of all calls, from which on two turns are enough
_MOST_PRODUCTS = 4e8  # of a sparse x sparse product that is still timed


def matrix(rows: int, density: float, kind: str) -> gs.SparseTensor:
    """A random CSR matrix: entries spread evenly, or rows whose lengths follow a power law."""
    generator = torch.Generator().manual_seed(rows + int(1e6 * density))
    if kind == "uniform":
        lengths = torch.full((rows,), density * rows)
    else:
        weights = torch.arange(1, rows + 1, dtype=torch.float64).pow(-0.8)
        lengths = (weights / weights.sum() * density * rows * rows)[torch.randperm(rows, generator=generator)]
    counts = lengths.round().long().clamp(1, rows)
    row = torch.repeat_interleave(torch.arange(rows), counts)
    keys = torch.unique(row * rows + torch.randint(rows, (row.numel(),), generator=generator))
    values = torch.randn(keys.numel(), generator=generator)
    structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys, (rows, rows))
    return gs.SparseTensor(values, structure)


def race(*calls: tuple[Any, ...], budget: float = 0.3, most: int = 60) -> list[float]:
    """Milliseconds of each call (a function and its arguments): the fastest of several turns, one after the other."""
    best = [_seconds(call) for call in calls]
    least = 1
    if sum(best) < _LONG:  # the first turn counts only where it is long
        best, least = [math.inf] * len(calls), 3
    started, turns = time.perf_counter(), 0
    while turns < least or (turns < most and time.perf_counter() - started < budget * len(calls)):
        best = [min(b, _seconds(call)) for b, call in zip(best, calls, strict=True)]
        turns += 1
    return [1e3 * b for b in best]


def _seconds(call: tuple[Any, ...]) -> float:
    function, *args = call
    before = CLOCK()
    function(*args)
    return CLOCK() - before


def anew(expression: str, a: gs.SparseTensor, b: gs.SparseTensor) -> gs.SparseTensor:
    """The product of two matrices whose patterns nothing is known about yet."""
    fresh = [gs.formats.Structure(t.format, t.shape, t.structure.arrays, t.structure.device) for t in (a, b)]
    return gs.einsum(expression, *(gs.SparseTensor(t.values(), s) for t, s in zip((a, b), fresh, strict=True)))


def sample(pattern: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """SDDMM as torch has it."""
    return torch.sparse.sampled_addmm(pattern, q, k.t(), beta=0.0)


def products(quick: bool) -> list[dict[str, Any]]:
    """SpMM, SpMV, SDDMM and sparse x sparse on all matrices."""
    rows = []
    for size, density in QUICK if quick else MATRICES:
        for kind in ("uniform", "power law"):
            a = matrix(size, density, kind)
            narrow = a.to_torch()
            wide = torch.sparse_csr_tensor(
                narrow.crow_indices().long(), narrow.col_indices().long(), narrow.values(), a.shape
            )
            about = {"rows": size, "density": density, "kind": kind, "nnz": a.nnz}
            x = torch.randn(size)
            times = race((gs.einsum, "ij,j->i", a, x), (torch.mv, wide, x), (torch.mv, narrow, x))
            rows.append({"what": "spmv", **about, "width": 1, **_times(times)})
            for width in WIDTHS[:2] if quick else WIDTHS:
                b, q = torch.randn(size, width), torch.randn(size, width)
                times = race((gs.einsum, "ik,kj->ij", a, b), (torch.mm, wide, b), (torch.mm, narrow, b))
                rows.append({"what": "spmm", **about, "width": width, **_times(times)})
                times = race((gs.einsum, "ij,ik,jk->ij", a, q, b), (sample, wide, q, b), (sample, narrow, q, b))
                rows.append({"what": "sddmm", **about, "width": width, **_times(times)})
            if a.nnz * a.nnz / size <= _MOST_PRODUCTS:
                s = a.to_scipy()
                known, new, other = race(
                    (gs.einsum, "ik,kj->ij", a, a), (anew, "ik,kj->ij", a, a), (operator.matmul, s, s)
                )
                rows.append({"what": "spgemm", **about, "width": 0, **_times((known, other))})
                rows.append({"what": "spgemm, new patterns", **about, "width": 0, **_times((new, other))})
            _say(rows, about)
    return rows


def tensors(quick: bool) -> list[dict[str, Any]]:
    """MTTKRP on a 3-d tensor with 1 % of its entries."""
    rows = []
    for shape in ((100, 120, 140),) if quick else ((100, 120, 140), (200, 250, 300)):
        generator = torch.Generator().manual_seed(0)
        dense = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.01)
        t = gs.from_dense(dense, gs.CSF())
        for width in (16, 32):
            u, v = torch.randn(shape[2], width), torch.randn(shape[1], width)
            times = race((gs.einsum, "ikl,lj,kj->ij", t, u, v), (torch.einsum, "ikl,lj,kj->ij", dense, u, v))
            rows.append(
                {
                    "what": "mttkrp",
                    "rows": shape[0],
                    "density": 0.01,
                    "kind": "uniform",
                    "nnz": t.nnz,
                    "width": width,
                    **_times(times),
                }
            )
        _say(rows, {"shape": shape})
    return rows


def _times(times: Sequence[float]) -> dict[str, Any]:
    ours, *others = times
    out = {"ours_ms": round(ours, 4), "other_ms": round(others[0], 4), "speedup": round(others[0] / ours, 3)}
    if len(others) > 1:
        out |= {"other_int32_ms": round(others[1], 4), "speedup_int32": round(others[1] / ours, 3)}
    return out


def _say(rows: list[dict[str, Any]], about: dict[str, Any]) -> None:
    same = [r for r in rows if all(r.get(k) == v for k, v in about.items() if k != "shape")]
    print(about, *(f"{r['what']}{r['width'] or ''} {r['speedup']:.2f}x" for r in same[-10:]), sep="  ", flush=True)


def large(rows: int = 20000, density: float = 0.2) -> dict[str, Any]:
    """SpMM and SpMV of the largest matrix, 80 million entries: once, since a turn takes a minute. About 3 GB."""
    generator = torch.Generator().manual_seed(0)
    counts, columns = [], []
    for _ in range(0, rows, 1000):  # a mask of all of it would be as large as the rest together
        mask = torch.rand(1000, rows, generator=generator) < density
        counts.append(mask.sum(1))
        columns.append(mask.nonzero()[:, 1].int())
    pos = torch.zeros(rows + 1, dtype=torch.int32)
    torch.cumsum(torch.cat(counts), 0, dtype=torch.int32, out=pos[1:])
    crd = torch.cat(columns)
    values = torch.randn(crd.numel(), generator=generator)
    structure = gs.formats.Structure(gs.CSR(), (rows, rows), {"pos1": pos, "crd1": crd}, values.device)
    a = gs.SparseTensor(values, structure)
    narrow = torch.sparse_csr_tensor(pos, crd, values, a.shape)
    wide = torch.sparse_csr_tensor(pos.long(), crd.long(), values, a.shape)
    found = []
    with torch.no_grad(), gs.dense_from(None):
        for width in (1, *WIDTHS):
            x = torch.randn(rows) if width == 1 else torch.randn(rows, width)
            expression, other = ("ij,j->i", torch.mv) if width == 1 else ("ik,kj->ij", torch.mm)
            times = race((gs.einsum, expression, a, x), (other, wide, x), (other, narrow, x))
            found.append({"width": width, "nnz": a.nnz, **_times(times)})
            print(found[-1], flush=True)
    return {"rows": rows, "density": density, "threads": torch.get_num_threads(), "rows_timed": found}


def crossover() -> dict[str, float]:
    """From which density on a dense product is faster than the sparse one: the smallest one found, by width."""
    found = {}
    for width in (32, 128):
        x = torch.randn(1500, width)
        for density in (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7):
            dense = torch.randn(1500, 1500) * (torch.rand(1500, 1500) < density)
            a = gs.from_dense(dense, gs.CSR())
            with gs.dense_from(None):
                ours, torchs = race((gs.einsum, "ik,kj->ij", a, x), (torch.mm, dense, x))
            if torchs < ours:
                found[str(width)] = density
                break
    return found


_FIRST = """
import time, torch, gossamer as gs
from gossamer.compiler.run import runtime
from gossamer.ops.plans_of import plan_of
a = gs.from_dense(torch.eye(64), gs.CSR()); x = torch.randn(64, 64)
plan = plan_of("ik,kj->ij", [a, x]); source = plan.kernel.source
t = time.perf_counter(); plan.kernel.functions; print(1e3 * (time.perf_counter() - t))
"""


def latency() -> dict[str, float]:
    """Milliseconds of a first build and of a disk hit, microseconds of a warm call over its kernel."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GOSSAMER_CACHE": folder, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", _FIRST]
        build, hit, again = (
            float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
            for _ in range(3)
        )
    a, x = gs.from_dense(torch.eye(4), gs.CSR()), torch.randn(4, 4)
    with gs.dense_from(None):
        for _ in range(2000):
            gs.einsum("ik,kj->ij", a, x)
        warm = min(_many(lambda: gs.einsum("ik,kj->ij", a, x)) for _ in range(20))
    return {"build_ms": round(build, 1), "disk_hit_ms": round(min(hit, again), 2), "warm_call_us": round(warm, 2)}


def _many(call: Callable[[], Any], turns: int = 200) -> float:
    before = time.perf_counter()
    for _ in range(turns):
        call()
    return 1e6 * (time.perf_counter() - before) / turns


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means, against their floors."""
    out: dict[str, Any] = {}
    for what, floor in FLOORS.items():
        some = [r["speedup"] for r in rows if r["what"] == what]
        if not some:
            continue
        narrow = [r["speedup_int32"] for r in rows if r["what"] == what and "speedup_int32" in r]
        out[what] = {
            "against": AGAINST[what],
            "geomean": round(_geomean(some), 2),
            "floor": floor,
            "worst": min(some),
            "cases": len(some),
        }
        if narrow:
            out[what] |= {"geomean_int32": round(_geomean(narrow), 2), "worst_int32": min(narrow)}
    return out


def _geomean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def run(quick: bool = False) -> dict[str, Any]:
    """Measure; return everything as JSON would hold it."""
    warnings.simplefilter("ignore", UserWarning)  # torch's, that its CSR tensors are in beta
    load = os.getloadavg()[0]
    threads = torch.get_num_threads()
    with torch.no_grad():
        rows = products(quick) + tensors(quick)
        crossing = {} if quick else crossover()
    machine = {
        "processor": platform.processor() or platform.machine(), "threads": threads, "clock": CLOCK.__name__,
        "torch": torch.__version__,
        "scipy": scipy.__version__, "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1),
    }  # fmt: skip
    return {
        "machine": machine,
        "summary": summary(rows),
        "latency": latency(),
        "crossover": crossing,
        "rows": rows,
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two matrices, nothing written")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--alone", action="store_true", help="one thread, by its processor time")
    parser.add_argument("--large", action="store_true", help="only 20,000 rows with 20 %% of their entries, once")
    args = parser.parse_args(argv)
    if args.alone:
        global CLOCK
        CLOCK = time.thread_time
        torch.set_num_threads(1)
    if args.large:
        warnings.simplefilter("ignore", UserWarning)
        path = args.out.with_name("compiler-large.json")
        path.write_text(json.dumps(large(), indent=1) + "\n")
        return
    result = run(args.quick)
    print(json.dumps({k: v for k, v in result.items() if k != "rows"}, indent=1))
    if not args.quick:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
