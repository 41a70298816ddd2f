"""Sparse layers on the CPU against what a user would use instead: dense torch, torch CSR, scipy.

Everything is called through F.linear on ordinary token-major float32 tensors, interleaved in one process, and the
minimum counts. A gain is the geometric mean over 768x768, 3072x768 and 768x3072.
"""

from __future__ import annotations

import contextlib
import copy
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table

import gossamer as gs
from gossamer import native
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNear
from gossamer.progress import Tell, progress
from gossamer.report.timing import interleaved

SHAPES = ((768, 768), (3072, 768), (768, 3072))
TOKENS = (1, 4, 8, 16, 32, 64, 128, 512, 2048, 4096)
PARTS = ("linear", "training", "encoder")
#: The rows of the table: name, pattern, format.
FORMATS = [
    ("unstructured 50%", "50%", PackedNear()),
    *((f"unstructured {s}", s, PackedCSR()) for s in ("75%", "90%", "95%")),
    ("unstructured 95% wide", "95%", PackedCSR(240)),
    ("condensed 90%", "fan-in 90%", Condensed()),
    *((f"grouped {n}:{m}", f"{n}:{m}:g8", PackedGroupedNM(n, m, 8)) for n, m in ((2, 4), (1, 4), (1, 10), (1, 20))),
    *((f"block 4x4 {s}", f"block 4x4 {s}", gs.BSR((4, 4))) for s in ("80%", "90%")),
]


def run(
    quick: bool = True,
    parts: Sequence[str] = PARTS,
    threads: Sequence[int] = (1, 2),
    shapes: Sequence[tuple[int, int]] = SHAPES,
    tokens: Sequence[int] | None = None,
    seconds: float | None = None,
) -> dict[str, Any]:
    """Measure: three numbers of tokens on one thread if `quick`, else all; or those that are given."""
    before = torch.get_num_threads()
    top = native.ceilings(1)
    results: dict[str, Any] = {"isa": native.isa(), "torch": torch.__version__, "ceilings": {}}
    if top is not None:
        results["ceilings"] = {
            "fma_gflops": top.gflops,
            "read_8MB_gbytes": top.cache_gbytes,
            "read_256MB_gbytes": top.memory_gbytes,
        }
    counts, few, short = ([1], (1, 16, 256), 0.04) if quick else (list(threads), TOKENS, 0.1)
    tokens, seconds = tokens or few, seconds or short
    steps = len(counts) * (len(shapes) * len(tokens) * ("linear" in parts) + len(shapes) * ("training" in parts))
    steps += len(counts) * 2 * ("encoder" in parts)
    try:
        with progress("cpu:", steps) as tell:
            if "linear" in parts:
                results["linear"] = [r for n in counts for r in linear(n, tokens, seconds, tell, shapes)]
            if "training" in parts:
                results["training"] = [r for n in counts for r in training(n, tell, shapes)]
            if "encoder" in parts:
                results["encoder"] = [r for n in counts for r in encoder(n, 2 if quick else 12, tell)]
    finally:
        torch.set_num_threads(before)
    return results


def weights(shape: tuple[int, int]) -> dict[str, Any]:
    """Return one weight, dense and in every format."""
    torch.manual_seed(0)
    dense = torch.randn(shape)
    return {"dense": dense} | {name: gs.sparsify(dense, how, format=format) for name, how, format in FORMATS}


def linear(
    threads: int,
    tokens: Sequence[int],
    seconds: float,
    tell: Tell,
    shapes: Sequence[tuple[int, int]] = SHAPES,
) -> list[dict[str, Any]]:
    """Time one layer: every format, torch CSR and (one thread) scipy, against dense."""
    torch.set_num_threads(threads)
    rows = []
    for shape in shapes:
        have = weights(shape)
        others = {s: have[f"unstructured {s}"].to_format(gs.CSR()) for s in ("50%", "90%")}
        bias = torch.randn(shape[0])
        for count in tokens:
            tell(f"linear {shape[0]}x{shape[1]}, {count} tokens", None, 0)
            x = torch.randn(count, shape[1])
            calls: dict[str, Callable[[], Any]] = {n: _linear(x, w, bias) for n, w in have.items()}
            for s, w in others.items():
                calls[f"torch CSR {s}"] = _product(w.to_torch(), x, bias)
                if threads == 1 and (scipy := _scipy(w)) is not None:
                    calls[f"scipy CSR {s}"] = _product(scipy, x.numpy(), bias.numpy())
            with torch.no_grad():
                for name, best in interleaved(calls, seconds).items():
                    same = have[re.sub("^(torch|scipy) CSR", "unstructured", name)]
                    kept = shape[0] * shape[1] if name == "dense" else same.nnz
                    row = _row(threads, shape, count, name, best, kept)
                    rows.append(row | ({"of_dense": have[name].nbytes / have["dense"].nbytes} if name in have else {}))
            tell("linear", None, 1)
    return rows


def _linear(x: Any, w: Any, bias: Any) -> Callable[[], Any]:
    return lambda: F.linear(x, w, bias)


def _product(matrix: Any, x: Any, bias: Any) -> Callable[[], Any]:
    return lambda: (matrix @ x.T).T + bias


def _scipy(weight: Any) -> Any:
    try:
        return weight.to_scipy()
    except ImportError:
        return None


def _row(threads: int, shape: tuple[int, int], tokens: int, name: str, seconds: float, kept: int) -> dict[str, Any]:
    gflops = 2 * kept * tokens / seconds / 1e9
    return {"threads": threads, "shape": shape, "tokens": tokens, "name": name, "us": seconds * 1e6, "gflops": gflops}


def training(
    threads: int,
    tell: Tell,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    tokens: Sequence[int] = (64, 512),
) -> list[dict[str, Any]]:
    """Time forward and backward at 90 %: gradients of the input and of the values."""
    torch.set_num_threads(threads)
    rows = []
    for shape in shapes:
        tell(f"forward and backward {shape[0]}x{shape[1]}", None, 0)
        torch.manual_seed(0)
        dense = torch.randn(shape)
        have = {"dense": dense, "unstructured 90%": gs.sparsify(dense, "90%", format=PackedCSR())}
        have["grouped 1:10"] = gs.sparsify(dense, "1:10:g8", format=PackedGroupedNM(1, 10, 8))
        have["CSR 90%"] = have["unstructured 90%"].to_format(gs.CSR())  # type: ignore[attr-defined]
        have = {name: w.detach().requires_grad_() for name, w in have.items()}
        for count in tokens:
            x, grad = torch.randn(count, shape[1], requires_grad=True), torch.randn(count, shape[0])
            calls = {name: _step(x, w, grad) for name, w in have.items()}
            for name, best in interleaved(calls, 0.15).items():
                kept = shape[0] * shape[1] if name == "dense" else have[name].nnz  # type: ignore[attr-defined]
                rows.append(_row(threads, shape, count, name, best, 3 * kept))
        tell("forward and backward", None, 1)
    return rows


def _step(x: torch.Tensor, w: torch.Tensor, grad: torch.Tensor) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(F.linear(x, w), (x, w), grad)


class Block(torch.nn.Module):
    """One layer of a BERT-base encoder, of plain parts."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.mix = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the two wide layers."""
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        x = self.norm1(x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


def encoder(threads: int, layers: int, tell: Tell) -> list[dict[str, Any]]:
    """Time some layers, 128 tokens, batch 1 and 8: dense, 90 % unstructured and 50 % grouped, all packed by pack_."""
    torch.set_num_threads(threads)
    rows = []
    for batch in (1, 8):
        tell(f"encoder, batch {batch}", None, 0)
        x = torch.randn(batch, 128, 768)
        models = {}
        for name, how in (("dense", None), ("unstructured 90%", "90%"), ("grouped 2:4", "2:4:g8")):
            torch.manual_seed(0)
            block = Block()
            if how:
                gs.sparsify_(block, how)
                with contextlib.redirect_stdout(io.StringIO()):
                    gs.pack_(block, x, show_progress=False)
            models[name] = torch.nn.Sequential(*(copy.deepcopy(block) for _ in range(layers))).eval()
        with torch.no_grad():
            for name, best in interleaved({n: _call(m, x) for n, m in models.items()}, 1.0).items():
                rows.append({"threads": threads, "batch": batch, "layers": layers, "name": name, "us": best * 1e6})
        tell("encoder", None, 1)
    return rows


def _call(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], Any]:
    return lambda: model(x)


def gains(rows: list[dict[str, Any]]) -> dict[tuple[int, int, str], float]:
    """Return geometric means over the shapes of dense time over time, by threads, tokens and name."""
    dense = {(r["threads"], tuple(r["shape"]), r["tokens"]): r["us"] for r in rows if r["name"] == "dense"}
    logs: dict[tuple[int, int, str], list[float]] = {}
    for r in rows:
        gain = dense[r["threads"], tuple(r["shape"]), r["tokens"]] / r["us"]
        logs.setdefault((r["threads"], r["tokens"], r["name"]), []).append(math.log(gain))
    return {key: math.exp(sum(values) / len(values)) for key, values in logs.items()}


def tables(results: dict[str, Any]) -> Iterator[Table]:
    """Yield what a user wants to see: times faster than dense."""
    ceiling = results["ceilings"].get("fma_gflops")
    for part, title in (("linear", "F.linear"), ("training", "forward and backward")):
        rows = results.get(part, [])
        for threads in sorted({r["threads"] for r in rows}):
            yield _gains(title, [r for r in rows if r["threads"] == threads], ceiling and ceiling * threads)
    if rows := results.get("encoder"):
        table = Table(title=f"{rows[0]['layers']} layers of BERT-base, 128 tokens", title_justify="left")
        for column in ("threads", "batch", "", "ms", "times faster"):
            table.add_column(column, justify="left" if not column else "right")
        base = {(r["threads"], r["batch"]): r["us"] for r in rows if r["name"] == "dense"}
        for r in rows:
            gain = base[r["threads"], r["batch"]] / r["us"]
            table.add_row(str(r["threads"]), str(r["batch"]), r["name"], f"{r['us'] / 1e3:.1f}", f"{gain:.2f}x")
        yield table


def _gains(title: str, rows: list[dict[str, Any]], ceiling: float | None) -> Table:
    found, threads = gains(rows), rows[0]["threads"]
    said = " (share of the FMA ceiling)" if ceiling else ""
    table = Table(title=f"{title}, threads: {threads}; times faster than dense{said}", title_justify="left")
    tokens = sorted({r["tokens"] for r in rows})
    table.add_column("")
    small = any("of_dense" in r for r in rows)
    if small:
        table.add_column("bytes of dense", justify="right")
    for n in tokens:
        table.add_column(f"{n:,} token{'s' * (n > 1)}", justify="right")
    for name in dict.fromkeys(r["name"] for r in rows):
        share = max((r["of_dense"] for r in rows if r["name"] == name and "of_dense" in r), default=None)
        cells = ["" if share is None else f"{share:.3f}"] if small else []
        for n in tokens:
            mine = [r["gflops"] for r in rows if (r["tokens"], r["name"]) == (n, name)]
            of = f" ({sum(mine) / len(mine) / ceiling:.2f})" if ceiling else ""
            cells.append(f"{found[threads, n, name]:.2f}x{of}")
        table.add_row(name, *cells)
    return table
