"""The compiler on a GPU against torch.sparse (cuSPARSE) and dense attention.

    python benchmarks/compiler_gpu.py [--quick] [--only WORD ...] [--out FILE]
    python benchmarks/compiler_gpu.py --table

Products are timed on four structures of about ten entries a row, with 32-bit indices for all. Calls take turns; each is
timed by events of the device, behind a short sleep so that the host is ahead, and the median counts. A layer is timed
as in training, step after step, so that the time of the host counts if it is the longer one. ``--only`` runs the cases
whose names contain one of the words, and keeps the other results of the file.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import gossamer as gs

RESULT = Path(__file__).parent / "results" / "compiler-gpu.json"
SLEEP = 400_000  # cycles, about 0.2 ms: the host queues a call meanwhile
Call = Callable[[], Any]
Times = dict[str, float]


class Report:
    """Prints and stores the results of one structure."""

    def __init__(self, name: str, results: dict[str, dict[str, Times]], file: Path, only: list[str]) -> None:
        self.name, self.results, self.file, self.only = name, results, file, only

    def wants(self, case: str) -> bool:
        """Is this case to be run?"""
        return not self.only or any(word in case for word in self.only)

    def __call__(self, case: str, times: Times) -> None:
        if not self.wants(case):
            return
        self.results.setdefault(self.name, {})[case] = times
        shown = ", ".join(f"{way} {ms:.3f} ms" for way, ms in times.items())
        print(f"{self.name:18} {case:34} {shown}  {list(times.values())[1] / times['gossamer']:.2f}x", flush=True)
        self.file.write_text(json.dumps({"device": torch.cuda.get_device_name(), "results": self.results}, indent=1))


def structures(n: int) -> dict[str, gs.SparseTensor]:
    """Four matrices of about ten entries a row."""
    device = "cuda"
    row = torch.arange(n, device=device)
    side = round(n ** (1 / 3))
    grid = torch.arange(side**3, device=device)
    near = [x + side * y + side * side * z for z in (-1, 0, 1) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    weights = torch.arange(1, n + 1, dtype=torch.float64, device=device).pow(-0.8)
    counts = (weights / weights.sum() * 10 * n).round().long().clamp(1, n // 4)[torch.randperm(n, device=device)]
    many = torch.repeat_interleave(row, counts)
    corner = torch.repeat_interleave(torch.arange(n // 8, device=device), 2)
    blocks = torch.randint(n // 8, (corner.numel(),), device=device)
    inside = torch.cartesian_prod(torch.arange(8, device=device), torch.arange(8, device=device))
    pairs = {
        "power law": (many, torch.randint(n, (many.numel(),), device=device)),
        "27-point stencil": (grid.repeat(27), torch.cat([grid + d for d in near])),
        "blocks": ((corner[:, None] * 8 + inside[:, 0]).reshape(-1), (blocks[:, None] * 8 + inside[:, 1]).reshape(-1)),
        "uniform": (row.repeat(10), torch.randint(n, (10 * n,), device=device)),
    }
    out = {}
    for name, (i, j) in pairs.items():
        good = (j >= 0) & (j < n) & (i < n)
        keys = torch.unique(i[good] * n + j[good])
        structure, _ = gs.formats.Structure.from_keys(gs.CSR(), keys, (n, n))
        out[name] = gs.SparseTensor(torch.randn(keys.numel(), device=device), structure)
    return out


def race(calls: dict[str, Call], turns: int = 15) -> Times:
    """Milliseconds of each call: the median of several turns, in which each is the first one by turns."""
    for _ in range(2):
        for call in calls.values():
            call()
    events: dict[str, list[tuple[Any, Any]]] = {name: [] for name in calls}
    order = list(calls.items())
    for turn in range(turns):
        first = turn % len(order)
        for name, call in order[first:] + order[:first]:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SLEEP)
            begin.record()
            call()
            end.record()
            events[name].append((begin, end))
        torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) for a, b in pairs) for name, pairs in events.items()}


def loop(calls: dict[str, Call], turns: int = 5, steps: int = 20) -> Times:
    """Milliseconds of each call in a loop without waiting: the median of several turns, device and host together."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + 1):
        for name, call in calls.items():
            torch.cuda.synchronize()
            before = time.perf_counter()
            for _ in range(steps):
                call()
            torch.cuda.synchronize()
            if turn:
                found[name].append(1e3 * (time.perf_counter() - before) / steps)
    return {name: statistics.median(times) for name, times in found.items()}


def csr_of(a: gs.SparseTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix for torch.sparse, with 32-bit indices."""
    arrays = a.structure.arrays
    return torch.sparse_csr_tensor(arrays["pos1"], arrays["crd1"], a.values().to(dtype), a.shape)


def products(a: gs.SparseTensor, report: Report) -> None:
    """SpMV, SpMM and SDDMM."""
    n = a.shape[1]
    theirs = csr_of(a)
    x = torch.randn(n, device="cuda")
    if report.wants("SpMV"):
        report("SpMV", race({"gossamer": lambda: gs.einsum("ij,j->i", a, x), "torch.sparse": lambda: theirs @ x}))
    for width in (32, 128):
        if not report.wants(case := f"SpMM, {width} columns"):
            continue
        b = torch.randn(n, width, device="cuda")
        calls = {"gossamer": lambda b=b: gs.einsum("ij,jk->ik", a, b), "torch.sparse": lambda b=b: theirs @ b}
        check(*(call() for call in calls.values()))
        report(case, race(calls))
    if report.wants(case := "SpMM, 128 columns, bfloat16"):
        half, their_half, b = a.bfloat16(), csr_of(a, torch.bfloat16), torch.randn(n, 128, device="cuda").bfloat16()
        calls = {"gossamer": lambda: gs.einsum("ij,jk->ik", half, b), "torch.sparse": lambda: their_half @ b}
        report(case, race(calls))
    ones = gs.mask(a)
    pattern = csr_of(ones)
    for width in (32, 128):
        if not report.wants(case := f"SDDMM, {width} columns"):
            continue
        q, k = torch.randn(2, n, width, device="cuda")
        calls = {
            "gossamer": lambda q=q, k=k: gs.einsum("ij,id,jd->ij", ones, q, k),
            "torch.sparse": lambda q=q, k=k: torch.sparse.sampled_addmm(pattern, q, k.t(), beta=0.0),
        }
        check(calls["gossamer"]().values(), calls["torch.sparse"]().values())
        report(case, race(calls))


def overhead() -> Times:
    """Microseconds of the host for a call on a small matrix, again and again."""
    a = gs.sparsify(torch.randn(500, 500, device="cuda"), "95%", format=gs.CSR())
    theirs, x = csr_of(a), torch.randn(500, 32, device="cuda")
    out = {}
    for name, call in {"gossamer": lambda: gs.einsum("ij,jk->ik", a, x), "torch.sparse": lambda: theirs @ x}.items():
        turns = []
        for _ in range(7):
            torch.cuda.synchronize()
            before = time.perf_counter()
            for _ in range(100):
                call()
            turns.append(1e4 * (time.perf_counter() - before))
        out[name] = statistics.median(turns)
    return out


def check(ours: Tensor, theirs: Tensor) -> None:
    """Raise unless both agree as float32 sums do."""
    error = ((ours.double() - theirs.double()).norm() / theirs.double().norm()).item()
    assert error < 1e-5, f"relative error {error}"


gs.function("leaky", "where(x > 0, x, 0.2 * x)")
GAT = "sum(ij * exp(leaky(i + j)) * jk) / sum(il * exp(leaky(i + l))) -> ik"


def layers(a: gs.SparseTensor, report: Report) -> None:
    """GCN and GAT layers, forward and backward."""
    if not report.wants("GCN layer") and not report.wants("GAT layer"):
        return
    n, width = a.shape[0], 64
    x, w = torch.randn(n, width, device="cuda", requires_grad=True), torch.randn(width, width, device="cuda") / 8
    w.requires_grad_()
    theirs = csr_of(a)

    def step(layer: Callable[[], Tensor], leaves: list[Tensor]) -> Call:
        return lambda: torch.autograd.grad(layer().square().sum(), leaves)

    ours = step(lambda: gs.einsum("ij,jk->ik", a, x @ w).relu(), [x, w])
    rival = step(lambda: torch.sparse.mm(theirs, x @ w).relu(), [x, w])
    for mine, other in zip(ours(), rival(), strict=True):
        check(mine, other)
    report("GCN layer, forward and backward", loop({"gossamer": ours, "torch.sparse": rival}))
    edges = gs.mask(a)
    pos, crd = a.structure.arrays["pos1"], a.structure.arrays["crd1"]
    rows = torch.repeat_interleave(torch.arange(n, device="cuda"), pos.diff())
    columns = crd.long()
    source, target = (torch.randn(n, device="cuda", requires_grad=True) for _ in range(2))

    order = torch.argsort(columns, stable=True)
    turned = torch.zeros(n + 1, dtype=torch.int32, device="cuda")
    turned[1:] = torch.bincount(columns, minlength=n).cumsum(0)
    turned_rows = rows[order].int()
    pattern = torch.sparse_csr_tensor(pos, crd, torch.zeros(a.nnz, device="cuda"), a.shape)

    class Product(torch.autograd.Function):
        """torch.sparse's own gradient makes a dense matrix: here are its kernels, with the transpose at hand."""

        @staticmethod
        def forward(ctx: Any, values: Tensor, x: Tensor) -> Tensor:
            ctx.save_for_backward(values, x)
            return torch.sparse_csr_tensor(pos, crd, values, a.shape) @ x

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
            values, x = ctx.saved_tensors
            at = torch.sparse_csr_tensor(turned, turned_rows, values[order], a.shape)
            return torch.sparse.sampled_addmm(pattern, grad, x.t(), beta=0.0).values(), at @ grad

    def by_torch() -> Tensor:
        weights = F.leaky_relu(source[rows] + target[columns], 0.2).exp()
        total = torch.zeros(n, device="cuda").index_add(0, rows, weights)
        return Product.apply(weights / total[rows], x)

    ours = step(lambda: gs.einsum(GAT, edges, source, target, x, edges, source, target), [source, target, x])
    rival = step(by_torch, [source, target, x])
    for mine, other in zip(ours(), rival(), strict=True):
        assert ((mine - other).norm() / other.norm()).item() < 1e-4
    report("GAT layer, forward and backward", loop({"gossamer": ours, "torch.sparse": rival}))


def attention(tokens: int, report: Report) -> None:
    """Masked attention at 5 % density: heads of 64, against dense attention with and without the mask."""
    place = torch.arange(tokens, device="cuda")
    masks = {
        "window": (place[:, None] - place).abs() <= round(0.0253 * tokens),
        "random": torch.rand(tokens, tokens, device="cuda") < 0.05,
    }
    for name, mask in masks.items():
        mask.fill_diagonal_(True)
        for dtype, heads in ((torch.float32, 1), (torch.bfloat16, 1), (torch.bfloat16, 16)):
            case = f"attention, {name}, {str(dtype)[6:]}{f', {heads} heads' if heads > 1 else ''}"
            if not report.wants(case):
                continue
            q, k, v = torch.randn(3, 1, heads, tokens, 64, device="cuda", dtype=dtype)
            ones = gs.from_dense(mask.to(dtype), gs.CSR())
            calls: dict[str, Call] = {
                "gossamer": lambda ones=ones, q=q, k=k, v=v: gs.attention(q, k, v, ones),
                "dense, masked": lambda q=q, k=k, v=v, m=mask: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
                "dense, no mask": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
            }
            ours, theirs = calls["gossamer"](), calls["dense, masked"]()
            error = ((ours.float() - theirs.float()).norm() / theirs.float().norm()).item()
            assert error < (1e-4 if dtype == torch.float32 else 2e-2), error
            report(case, race(calls))


def table(results: dict[str, dict[str, Times]]) -> str:
    """Return results as a table for the docs."""
    cases = list(dict.fromkeys(case for times in results.values() for case in times))
    named = [name for name in results if name != "attention"]
    lines = [f"| | {' | '.join(named)} |", f"|---|{'---|' * len(named)}"]
    for case in (c for c in cases if not c.startswith("attention")):
        cells = []
        for name in named:
            times = results[name].get(case)
            ratio = f"{times['gossamer']:.3g} ms, {times['torch.sparse'] / times['gossamer']:.1f}x" if times else ""
            cells.append(ratio)
        lines.append(f"| {case} | {' | '.join(cells)} |")
    lines += ["", "| attention, 8,192 tokens | gossamer | dense, masked | dense, no mask |", "|---|---|---|---|"]
    for case, times in results.get("attention", {}).items():
        lines.append(f"| {case[11:]} | " + " | ".join(f"{t:.3g} ms" for t in times.values()) + " |")
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--table", action="store_true", help="print the stored results as a table for the docs")
    parser.add_argument("--only", nargs="*", default=[], help="words: run cases whose names contain one of them")
    args = parser.parse_args(argv)
    if args.table:
        print(table(json.loads(args.out.read_text())["results"]))
        return
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.manual_seed(0)
    gs.fallback("error")
    results: dict[str, dict[str, Times]] = {}
    if args.only and args.out.exists():
        results = json.loads(args.out.read_text())["results"]
    for name, a in structures(20_000 if args.quick else 1 << 18).items():
        report = Report(name, results, args.out, args.only)
        products(a, report)
        layers(a, report)
    attention(1024 if args.quick else 8192, Report("attention", results, args.out, args.only))
    print("microseconds of the host for a small call:", overhead())
    print(table(results))


if __name__ == "__main__":
    main()
