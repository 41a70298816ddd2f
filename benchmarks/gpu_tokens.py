"""One layer on a GPU at 1 to 4096 tokens: every kernel for packed V:N:M and bitmaps against cuBLAS in bf16 and FP8.

    python benchmarks/gpu_tokens.py                 writes results/gpu-tokens.json and the table of the docs
    python benchmarks/gpu_tokens.py --only sweep    sweep or eager

Random weights and masks, bf16. Times are of CUDA graphs, contenders interleaved, the median of 20 replays; weights go
round copies that together are more than twice the second cache. ``cublas fp8`` is ``torch._scaled_mm`` with one scale
for each tensor and activations that are in FP8 already; ``x quantized`` takes bf16, quantized by our kernel before it.
Ours take bf16 and quantize it in the time that is shown.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.gpu_common import Wanted, collected, compile_all, pattern, unstructured  # noqa: E402
from benchmarks.gpu_plot import DOCS  # noqa: E402
from gossamer.formats import PackedVNM  # noqa: E402
from gossamer.kernels.bitmap.operators import pack_bitmap  # noqa: E402
from gossamer.kernels.bitmap.plan import TOKENS as BITMAP_TOKENS  # noqa: E402
from gossamer.kernels.vnm import cuda as vnm_cuda  # noqa: E402
from gossamer.kernels.vnm import eight_cuda  # noqa: E402
from gossamer.kernels.vnm.eight import pack8  # noqa: E402
from gossamer.kernels.vnm.operators import vnm_of  # noqa: E402
from gossamer.kernels.vnm.weight_only import pack_weight_only  # noqa: E402
from gossamer.models.pack import graphs  # noqa: E402
from gossamer.native.cuda.calls import Address  # noqa: E402

SHAPES = [(14336, 4096), (4096, 14336)]
TOKENS = [1, 8, 16, 32, 64, 128, 512, 4096]
E4M3 = torch.float8_e4m3fn
Call = Callable[[], Any]


def copies(tensors: tuple[Tensor, ...], bytes_each: int) -> list[tuple[Tensor, ...]]:
    """A weight's tensors, and copies of them, together more than twice the second cache."""
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = math.ceil(2.2 * cache / bytes_each) + 1
    return [tensors, *(tuple(t.clone() for t in tensors) for _ in range(count - 1))]


def held(*tensors: Tensor) -> int:
    return sum(t.nbytes for t in tensors)


def contenders(rows: int, cols: int) -> Iterator[tuple[str, Callable[[Tensor], list[Call]], int]]:
    """Of each: a name, its calls for activations, and the most tokens that it is for."""
    linear = torch.ops.gossamer
    dense = pattern(rows, cols, 4)
    each = copies((dense,), held(dense))
    yield "cublas bf16", lambda x: [lambda w=w: F.linear(x, w) for (w,) in each], 1 << 30
    one = torch.ones((), device="cuda")
    eight = copies((dense.to(E4M3),), dense.numel())

    def scaled(x: Tensor) -> list[Call]:
        small = x.to(E4M3)
        return [
            lambda w=w: torch._scaled_mm(small, w.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
            for (w,) in eight
        ]

    yield "cublas fp8", scaled, 1 << 30

    def quantized(x: Tensor) -> list[Call]:
        steps = -(-cols // 128)
        small, scale = x.new_empty((len(x), steps * 128), dtype=E4M3), torch.empty(len(x), device="cuda")
        kernel, grid, threads, rest = eight_cuda.quantize_launch(x, cols, 4, steps, 1, 0, (Address(0),) * 4)
        pointers = (x.data_ptr(), 0, small.data_ptr(), scale.data_ptr())

        def call(weight: Tensor) -> Tensor:
            kernel(grid, threads, *pointers, *rest[4:])
            return torch._scaled_mm(small, weight.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return [lambda w=w: call(w) for (w,) in eight]

    yield "cublas fp8, x quantized", quantized, 1 << 30
    for m in (4, 8):
        weight = pattern(rows, cols, m)
        packed = gs.from_dense(weight, PackedVNM("all", 2, m))
        shared, meta, sizes = vnm_of(packed.structure)
        sets = copies((packed.values(), shared, meta), packed.nbytes)
        yield (
            f"2:{m}",
            lambda x, sets=sets, z=sizes: [lambda s=s: linear.vnm_forward(*s, x, None, *z, 0) for s in sets],
            1 << 30,
        )
        p8 = pack8(weight, m)
        sets8 = copies(p8[:4], held(*p8[:4]))
        yield (
            f"2:{m} fp8",
            lambda x, sets=sets8, z=p8.sizes: [lambda s=s: linear.vnm_8bit(*s, x, None, *z, 0) for s in sets],
            1 << 30,
        )
        for bits in (8, 4):
            small = pack_weight_only(weight, "all", m, bits)
            sets4 = copies(small[:4], held(*small[:4]))
            yield (
                f"2:{m} w{bits}",
                lambda x, sets=sets4, z=small.sizes: [
                    lambda s=s: linear.vnm_weight_only(*s, x, None, *z, 0) for s in sets
                ],
                32,
            )
    for percent in (50, 60, 70, 80, 90):
        values, (bits_, pos, bsizes) = pack_bitmap(unstructured(rows, cols, percent / 100))
        setsb = copies((values, bits_, pos), held(values, bits_, pos))
        yield (
            f"bitmap {percent}",
            lambda x, sets=setsb, z=bsizes: [lambda s=s: linear.bitmap_linear(*s, x, None, *z, 0) for s in sets],
            BITMAP_TOKENS,
        )


def sweep(pool: Any) -> list[dict[str, Any]]:
    """Microseconds of every contender at every number of tokens."""
    found = []
    for rows, cols in SHAPES:
        torch.manual_seed(0)
        everyone = list(contenders(rows, cols))
        inputs = {n: torch.randn(n, cols, device="cuda").bfloat16() for n in TOKENS}
        wanted: Wanted = {}
        with collected(wanted):
            for n, x in inputs.items():
                for _, make, most in everyone[3:]:
                    if n <= most:
                        make(x)[0]()
        compile_all(pool, wanted)
        for n, x in inputs.items():
            us = graphs.replayed({name: make(x) for name, make, most in everyone if n <= most})
            found.append({"shape": [rows, cols], "tokens": n, **{k: round(1e6 * t, 2) for k, t in us.items()}})
        print(table([row for row in found if row["shape"] == [rows, cols]]), flush=True)
        del everyone, inputs
        torch.cuda.empty_cache()
    return found


def tables(found: list[dict[str, Any]]) -> str:
    """Markdown of all shapes."""
    return "\n\n".join(table([row for row in found if row["shape"] == list(shape)]) for shape in SHAPES)


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each contender, microseconds by tokens."""
    names = dict.fromkeys(name for row in rows for name in row if name not in ("shape", "tokens"))
    shape = " x ".join(map(str, rows[0]["shape"]))
    lines = [f"| {shape}, tokens | " + " | ".join(str(r["tokens"]) for r in rows) + " |", "|---|" + "--:|" * len(rows)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{r[name]:.1f}" if name in r else "" for r in rows) + " |")
    return "\n".join(lines)


def eager(pool: Any) -> dict[str, float]:
    """Microseconds of CPU time of a call, on a problem so small that the GPU waits for the CPU."""
    dense = pattern(512, 512, 8)
    packed = gs.from_dense(dense, PackedVNM("all", 2, 8))
    shared, meta, sizes = vnm_of(packed.structure)
    p8 = pack8(dense, 8)
    values, (bits, pos, bsizes) = pack_bitmap(dense)
    arguments, ops, found = (packed.values(), shared, meta), torch.ops.gossamer, {}
    for tokens in (8, 64, 600):
        x = torch.randn(tokens, 512, device="cuda").bfloat16()
        ways: dict[str, Call] = {
            "dense": lambda x=x: F.linear(x, dense),
            "2:8 F.linear": lambda x=x: F.linear(x, packed),
            "2:8 Python": lambda x=x: vnm_cuda.product(*arguments, x, None, *sizes, 0),
            "2:8 vnm_linear": lambda x=x: ops.vnm_linear.default(*arguments, x, None, *sizes, 0),
            "2:8 vnm_forward": lambda x=x: ops.vnm_forward.default(*arguments, x, None, *sizes, 0),
            "2:8 fp8": lambda x=x: ops.vnm_8bit.default(*p8[:4], x, None, *p8.sizes, 0),
        }
        if tokens <= BITMAP_TOKENS:
            ways["bitmap"] = lambda x=x: ops.bitmap_linear.default(values, bits, pos, x, None, *bsizes, 0)
        for name, call in ways.items():
            found[f"{name}, {tokens} tokens"] = round(cpu_time(call), 1)
    print("eager, us:", json.dumps(found))
    return found


def cpu_time(call: Call) -> float:
    """Microseconds of a call, the least of ten times two hundred."""
    call()
    best = math.inf
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            call()
        best = min(best, (time.perf_counter() - start) / 200 * 1e6)
    return best


PARTS: dict[str, Callable[[Any], Any]] = {"sweep": sweep, "eager": eager}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu-tokens.json")
    arguments = parser.parse_args()
    with multiprocessing.get_context("fork").Pool() as pool:  # before CUDA is initialised here
        found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        with torch.no_grad():
            for name, part in PARTS.items():
                if arguments.only in (None, name):
                    start = time.perf_counter()
                    found[name] = part(pool)
                    print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)
    if arguments.out.exists():
        found = {**json.loads(arguments.out.read_text()), **found}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    if not arguments.only:
        (DOCS / "gpu-tokens-table.md").write_text(tables(found["sweep"]) + "\n")


if __name__ == "__main__":
    main()
