"""Sparse linear layers on the CPU against what a user would use instead: dense torch, torch CSR, scipy.

    python benchmarks/cpu.py                    all of it; writes results/cpu-<isa>.json and the plot of the docs
    python benchmarks/cpu.py --quick            three shapes, few tokens, one thread: a minute
    python benchmarks/cpu.py --only training    linear, training or encoder

Everything is called through F.linear on ordinary token-major float32 tensors, interleaved in one process, and the
minimum counts. A gain is the geometric mean over 768x768, 3072x768 and 768x3072.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import gossamer as gs  # noqa: E402
from gossamer import native  # noqa: E402
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM  # noqa: E402

SHAPES = ((768, 768), (3072, 768), (768, 3072))
TOKENS = (1, 4, 8, 16, 32, 64, 128, 512, 2048)
#: The rows of the table: name, pattern, format.
FORMATS = [
    *((f"unstructured {s}", s, PackedCSR()) for s in ("50%", "75%", "90%", "95%")),
    ("unstructured 95% wide", "95%", PackedCSR(240)),
    ("condensed 90%", "fan-in 90%", Condensed()),
    *((f"grouped {n}:{m}", f"{n}:{m}:g8", PackedGroupedNM(n, m, 8)) for n, m in ((2, 4), (1, 4), (1, 10), (1, 20))),
]
#: What the issue asks for, by kind of row and sparsity: at 128 tokens and more, at one, and between 8 and 64.
FLOORS = {
    "grouped": {128: (1.6, 3, 7, 12), 1: (1.3, 2.2, 5, 8), 8: (1, 1.8, 4, 7)},
    "unstructured": {128: (1.2, 2, 5, 9), 1: (1, 1.6, 3.5, 6), 8: (1, 1.8, 4, 7)},
}


def ceilings() -> dict[str, float]:
    """Measure what one core can do at most: GFLOP/s, and GB/s from the last cache and from memory."""
    isa = native.isa() or "baseline"
    flags = {"avx512": ["-mavx512f", "-DWIDTH=16"], "avx2": ["-mavx2", "-mfma", "-DWIDTH=8"]}.get(isa, [])
    library = ctypes.CDLL(str(native.build("ceilings", {"ceilings": (HERE / "ceilings.cpp", flags)}, [])))
    library.fma_gflops.restype = library.read_gbytes.restype = ctypes.c_double
    library.read_gbytes.argtypes = [ctypes.c_int64]
    return {
        "fma_gflops": library.fma_gflops(),
        "read_8MB_gbytes": library.read_gbytes(8 << 20),
        "read_256MB_gbytes": library.read_gbytes(256 << 20),
    }


def interleaved(functions: dict[str, Callable[[], Any]], seconds: float = 0.1) -> dict[str, float]:
    """Seconds of each function: the minimum of interleaved runs."""
    best = dict.fromkeys(functions, math.inf)
    end, runs = time.perf_counter() + seconds * len(functions), 0
    while runs < 3 or time.perf_counter() < end:
        runs += 1
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def weights(shape: tuple[int, int]) -> dict[str, Any]:
    torch.manual_seed(0)
    dense = torch.randn(shape)
    return {"dense": dense} | {name: gs.sparsify(dense, how, format=format) for name, how, format in FORMATS}


def linear(threads: int, tokens: tuple[int, ...], seconds: float) -> list[dict[str, Any]]:
    """Time one layer: every format, torch CSR and (one thread) scipy, against dense."""
    torch.set_num_threads(threads)
    rows = []
    for shape in SHAPES:
        have = weights(shape)
        others = {s: have[f"unstructured {s}"].to_format(gs.CSR()) for s in ("50%", "90%")}
        bias = torch.randn(shape[0])
        for count in tokens:
            x = torch.randn(count, shape[1])
            calls: dict[str, Callable[[], Any]] = {
                n: lambda w=w, x=x, b=bias: F.linear(x, w, b) for n, w in have.items()
            }
            for s, w in others.items():
                t = w.to_torch()
                calls[f"torch CSR {s}"] = lambda t=t, x=x, b=bias: (t @ x.t()).t() + b
                if threads == 1 and (scipy := _scipy(w)) is not None:
                    numpy, shift = x.numpy(), bias.numpy()
                    calls[f"scipy CSR {s}"] = lambda m=scipy, x=numpy, b=shift: (m @ x.T).T + b
            with torch.no_grad():
                for name, best in interleaved(calls, seconds).items():
                    kept = have[name].nnz if name in have and name != "dense" else shape[0] * shape[1]
                    rows.append(_row(threads, shape, count, name, best, kept))
    return rows


def _scipy(weight: Any) -> Any:
    try:
        return weight.to_scipy()
    except ImportError:
        return None


def _row(threads: int, shape: tuple[int, int], tokens: int, name: str, seconds: float, kept: int) -> dict[str, Any]:
    gflops = 2 * kept * tokens / seconds / 1e9
    return {"threads": threads, "shape": shape, "tokens": tokens, "name": name, "us": seconds * 1e6, "gflops": gflops}


def training(threads: int, tokens: tuple[int, ...] = (64, 512)) -> list[dict[str, Any]]:
    """Time forward and backward at 90 %: gradients of the input and of the values."""
    torch.set_num_threads(threads)
    rows = []
    for shape in SHAPES:
        torch.manual_seed(0)
        dense = torch.randn(shape)
        have = {"dense": dense, "unstructured 90%": gs.sparsify(dense, "90%", format=PackedCSR())}
        have["grouped 1:10"] = gs.sparsify(dense, "1:10:g8", format=PackedGroupedNM(1, 10, 8))
        have["CSR 90%"] = have["unstructured 90%"].to_format(gs.CSR())
        have = {name: w.detach().requires_grad_() for name, w in have.items()}
        for count in tokens:
            x, grad = torch.randn(count, shape[1], requires_grad=True), torch.randn(count, shape[0])

            def step(w: Any, x: Any = x, grad: Any = grad) -> Any:
                return torch.autograd.grad(F.linear(x, w), (x, w), grad)

            for name, best in interleaved({n: lambda w=w: step(w) for n, w in have.items()}, 0.15).items():
                kept = shape[0] * shape[1] if name == "dense" else have[name].nnz
                rows.append(_row(threads, shape, count, name, best, 3 * kept))
    return rows


class Block(torch.nn.Module):
    """One layer of a BERT-base encoder, of plain parts."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = self.norm1(x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def encoder(threads: int, layers: int = 12) -> list[dict[str, Any]]:
    """Time twelve layers, 128 tokens, batch 1 and 8: dense, 90 % unstructured and 50 % grouped, all packed by pack_."""
    torch.set_num_threads(threads)
    rows = []
    for batch in (1, 8):
        x = torch.randn(batch, 128, 768)
        models = {}
        for name, how in (("dense", None), ("unstructured 90%", "90%"), ("grouped 2:4", "2:4:g8")):
            torch.manual_seed(0)
            block = Block()
            if how:
                gs.sparsify_(block, how)
                gs.pack_(block, x)
            models[name] = torch.nn.Sequential(*(block for _ in range(layers))).eval()
        with torch.no_grad():
            for name, best in interleaved({n: lambda m=m, x=x: m(x) for n, m in models.items()}, 1.0).items():
                rows.append({"threads": threads, "batch": batch, "name": name, "us": best * 1e6})
    return rows


def gains(rows: list[dict[str, Any]]) -> dict[tuple[int, int, str], float]:
    """Geometric means over the shapes of dense time over time, by threads, tokens and name."""
    dense = {(r["threads"], tuple(r["shape"]), r["tokens"]): r["us"] for r in rows if r["name"] == "dense"}
    logs: dict[tuple[int, int, str], list[float]] = {}
    for r in rows:
        gain = dense[r["threads"], tuple(r["shape"]), r["tokens"]] / r["us"]
        logs.setdefault((r["threads"], r["tokens"], r["name"]), []).append(math.log(gain))
    return {key: math.exp(sum(values) / len(values)) for key, values in logs.items()}


def show(title: str, rows: list[dict[str, Any]], ceiling: float) -> None:
    found = gains(rows)
    for threads in sorted({t for t, _, _ in found}):
        tokens = sorted({n for t, n, _ in found if t == threads})
        print(f"\n{title}, {threads} thread{'s' * (threads > 1)}: times faster than dense (share of the FMA ceiling)")
        print(" " * 24 + "".join(f"{n:>14}" for n in tokens))
        for name in dict.fromkeys(r["name"] for r in rows):
            cells = []
            for n in tokens:
                mine = [r for r in rows if (r["threads"], r["tokens"], r["name"]) == (threads, n, name)]
                share = sum(r["gflops"] for r in mine) / max(len(mine), 1) / (ceiling * threads)
                cells.append(f"{found.get((threads, n, name), math.nan):>7.2f} ({share:.2f})")
            print(f"{name:<24}" + "".join(f"{c:>14}" for c in cells))


def plot(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw the gain over dense by number of tokens."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        return
    found = gains([r for r in rows if r["threads"] == 1])
    kinds = (("unstructured", "PackedCSR"), ("grouped", "PackedGroupedNM"))
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, (kind, title) in zip(axes, kinds, strict=True):
        for name in dict.fromkeys(r["name"] for r in rows if r["name"].startswith(kind) and "wide" not in r["name"]):
            points = sorted((n, gain) for (_, n, other), gain in found.items() if other == name)
            axis.plot(*zip(*points, strict=True), marker="o", label=name)
        torch_csr = sorted((n, gain) for (_, n, other), gain in found.items() if other == "torch CSR 90%")
        if torch_csr:
            axis.plot(*zip(*torch_csr, strict=True), "--", color="gray", label="torch CSR 90%")
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(xscale="log", yscale="log", xlabel="tokens", title=f"{title}, one thread")
        axis.grid(alpha=0.3, which="both")
        axis.legend(fontsize=8)
    axes[0].set_ylabel("times faster than dense (MKL)")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["linear", "training", "encoder"])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--out", type=Path, help="folder for the JSON and the plot; benchmarks/results by default")
    options = parser.parse_args()
    top = ceilings()
    print(f"{platform.processor() or platform.machine()}, kernels for {native.isa()}, torch {torch.__version__}")
    print(", ".join(f"{name} {value:.1f}" for name, value in top.items()))
    results: dict[str, Any] = {"isa": native.isa(), "torch": torch.__version__, "ceilings": top}
    threads, tokens = ([1], (1, 16, 128)) if options.quick else (options.threads, TOKENS)
    wanted = [options.only] if options.only else ["linear", "training", "encoder"]
    if "linear" in wanted:
        results["linear"] = [r for n in threads for r in linear(n, tokens, 0.05 if options.quick else 0.1)]
        show("F.linear", results["linear"], top["fma_gflops"])
    if "training" in wanted:
        results["training"] = [r for n in threads for r in training(n)]
        show("forward + backward", results["training"], top["fma_gflops"])
    if "encoder" in wanted:
        results["encoder"] = [r for n in threads for r in encoder(n, 2 if options.quick else 12)]
        base = {(r["threads"], r["batch"]): r["us"] for r in results["encoder"] if r["name"] == "dense"}
        for r in results["encoder"]:
            gain = base[r["threads"], r["batch"]] / r["us"]
            where = f"encoder, {r['threads']} threads, batch {r['batch']}"
            print(f"{where}: {r['name']} {r['us'] / 1e3:.1f} ms, {gain:.2f}x")
    if options.quick or options.only:
        return
    folder = options.out or HERE / "results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"cpu-{native.isa()}.json").write_text(json.dumps(results, indent=1) + "\n")
    plot(results["linear"], folder / f"cpu-{native.isa()}.svg")


if __name__ == "__main__":
    main()
