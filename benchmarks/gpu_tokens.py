"""One layer on a GPU at 1 to 4096 tokens: every kernel for packed V:N:M and bitmaps against cuBLAS in bf16 and FP8.

    python benchmarks/gpu_tokens.py                 checks, then times; writes results/gpu-tokens.json
    python benchmarks/gpu_tokens.py --only check    check, sweep or eager

Random weights and masks, bf16. Times are of CUDA graphs, contenders interleaved, the median of 20 replays; weights go
round copies that together are more than twice the second cache. ``cublas fp8`` is ``torch._scaled_mm`` with one scale
for each tensor and activations that are in FP8 already; ours take bf16 and quantize them in the time that is shown.
"""

from __future__ import annotations

import argparse
import contextlib
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
from gossamer.formats import PackedVNM  # noqa: E402
from gossamer.kernels.bitmap import cuda as bitmap_cuda  # noqa: E402
from gossamer.kernels.bitmap.operators import pack_bitmap  # noqa: E402
from gossamer.kernels.vnm import cuda as vnm_cuda  # noqa: E402
from gossamer.kernels.vnm import eight_cuda, products, weight_only_cuda  # noqa: E402
from gossamer.kernels.vnm.eight import decode8, pack8, quantize  # noqa: E402
from gossamer.kernels.vnm.operators import ACTIVATIONS  # noqa: E402
from gossamer.kernels.vnm.weight_only import decode_weight_only, pack_weight_only  # noqa: E402
from gossamer.models.pack import graphs  # noqa: E402
from gossamer.native.cuda import calls, function  # noqa: E402
from gossamer.native.cuda.cache import cubin  # noqa: E402

SHAPES = [(14336, 4096), (4096, 14336)]
TOKENS = [1, 8, 16, 32, 64, 128, 512, 4096]
E4M3 = torch.float8_e4m3fn
Call = Callable[[], Any]


def pattern(rows: int, cols: int, m: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A random weight that keeps 2 of each m columns, four of them shared by all rows."""
    width = -(-cols // m) * m
    shared = torch.rand(width // m, m, device="cuda").topk(4, dim=1).indices
    kept = torch.rand(rows, width // m, 4, device="cuda").topk(2, dim=2).indices
    at = shared.expand(rows, -1, -1).gather(2, kept) + torch.arange(0, width, m, device="cuda")[:, None]
    mask = torch.zeros(rows, width, dtype=torch.bool, device="cuda").scatter_(1, at.view(rows, -1), True)
    return (torch.randn(rows, cols, device="cuda") / math.sqrt(cols) * mask[:, :cols]).to(dtype)


def unstructured(rows: int, cols: int, sparsity: float, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A random weight without a pattern."""
    kept = torch.rand(rows, cols, device="cuda") >= sparsity
    return (torch.randn(rows, cols, device="cuda") / math.sqrt(cols) * kept).to(dtype)


# -- kernels are compiled beforehand, by as many processes as there are cores


class _Nothing:
    """Stands in for a kernel while the kernels of a run are collected."""

    parameters, shared, chained, handle = "", 0, False, 0

    def __call__(self, *arguments: object) -> None:
        return


@contextlib.contextmanager
def collected(wanted: dict[str, tuple[str, dict[str, object]]]) -> Iterator[None]:
    """Launch nothing; note which kernels would be."""
    real, remember = products.function, calls.remember

    def note(source: str, name: str, device: int, parameters: str, **rest: Any) -> Any:
        macros = {k: v for k, v in rest.items() if k.isupper()}
        wanted[f"{source}{sorted(macros.items())}"] = (source, macros)
        return _Nothing()

    products.function, calls.remember = note, lambda *_: None  # type: ignore[assignment]
    try:
        yield
    finally:
        products.function, calls.remember = real, remember
        products._ready.clear()
        vnm_cuda._known.clear()
        for module in (eight_cuda, weight_only_cuda, bitmap_cuda):
            module.KINDS._calls.clear()


def _compile(pair: tuple[str, dict[str, object]]) -> str:
    try:
        cubin(pair[0], "sm_90a", pair[1])
    except Exception as error:
        return f"{pair}: {error}"
    return ""


def compile_all(pool: Any, wanted: dict[str, tuple[str, dict[str, object]]]) -> None:
    """Compile kernels that were collected."""
    start = time.perf_counter()
    for wrong in pool.map(_compile, list(wanted.values()), chunksize=1):
        if wrong:
            print(wrong[:2000])
    print(f"{len(wanted)} kernels compiled in {time.perf_counter() - start:.1f} s", flush=True)


# -- right


def excess(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, activation: int, sums: float) -> float:
    """The largest error over its bound: the rounding of the result, and of sums of k terms with that many bits."""
    if products.function is not function:
        return 0.0  # kernels are only collected
    x, weight, bias = x.double(), weight.double(), bias.double()
    exact = ACTIVATIONS[activation](F.linear(x, weight, bias))
    unit = 2.0**-11 if out.dtype is torch.float16 else 2.0**-8
    bound = unit * exact.abs() + 1.2 * sums * F.linear(x.abs(), weight.abs(), bias.abs()) + 1e-7
    worst = ((out.double() - exact).abs() / bound).max()
    return float(worst) if bool(torch.isfinite(out).all()) else math.inf


def cases() -> Iterator[tuple[str, Callable[[], float]]]:
    """Every kernel at sizes below, at and above its tiles: a name, and the error over its bound."""
    sizes = [(64, 64), (130, 520), (257, 1032), (1000, 96), (4300, 2056), (9000, 520)]
    for number, (rows, cols) in enumerate(sizes):
        for tokens in (1, 8, 9, 16, 17, 32, 33, 64, 65, 96, 128, 129, 300, 600):
            dtype = (torch.bfloat16, torch.float16)[(number + tokens) % 2]
            common = rows, cols, tokens, dtype, (number + tokens) % 4
            for m in (4, 8, 16):
                yield f"2:{m} {common}", lambda m=m, c=common: check_vnm(m, *c)
                for small in (E4M3, torch.int8):
                    yield f"8-bit 2:{m} {small} {common}", lambda m=m, s=small, c=common: check_8bit(m, s, *c)
            if tokens <= 33:
                for bits in (8, 4):
                    yield f"{bits}-bit weight {common}", lambda b=bits, c=common: check_weight_only(b, *c)
            if tokens <= 64:
                for sparsity in (0.3, 0.8):
                    yield f"bitmap {sparsity} {common}", lambda s=sparsity, c=common: check_bitmap(s, *c)


def operands(rows: int, cols: int, tokens: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return torch.randn(tokens, cols, device="cuda").to(dtype), torch.randn(rows, device="cuda").to(dtype)


def check_vnm(m: int, rows: int, cols: int, tokens: int, dtype: torch.dtype, activation: int) -> float:
    dense = pattern(rows, cols, m, dtype)
    x, bias = operands(rows, cols, tokens, dtype)
    name = (None, "relu", "gelu", "silu")[activation]
    out = gs.linear(x, gs.from_dense(dense, PackedVNM("all", 2, m)), bias, name)
    return excess(out, x, dense, bias, activation, (2 * cols / m + 4) * 2.0**-24)


def check_8bit(
    m: int, small: torch.dtype, rows: int, cols: int, tokens: int, dtype: torch.dtype, activation: int
) -> float:
    values, shared, meta, scale, sizes = pack8(pattern(rows, cols, m, dtype), m, small)
    x, bias = operands(rows, cols, tokens, dtype)
    out = torch.ops.gossamer.vnm_8bit(values, shared, meta, scale, x, bias, *sizes, activation)
    token, each = quantize(x, shared, cols, m, small)
    weight = decode8(values, shared, meta, sizes) * scale[:, None]
    # tensor cores add products of e4m3 up with 14 bits or so
    return excess(out, token.float() * each[:, None], weight, bias, activation, 2.0**-12 if small is E4M3 else 2.0**-22)


def check_weight_only(bits: int, rows: int, cols: int, tokens: int, dtype: torch.dtype, activation: int) -> float:
    packed = pack_weight_only(pattern(rows, cols, 8, dtype), "all", 8, bits)
    x, bias = operands(rows, cols, tokens, dtype)
    out = torch.ops.gossamer.vnm_weight_only(*packed[:4], x, bias, *packed.sizes, activation)
    return excess(out, x, decode_weight_only(*packed), bias, activation, (cols / 4 + 4) * 2.0**-24)


def check_bitmap(sparsity: float, rows: int, cols: int, tokens: int, dtype: torch.dtype, activation: int) -> float:
    dense = unstructured(rows, cols, sparsity, dtype)
    values, (bits, pos, sizes) = pack_bitmap(dense)
    x, bias = operands(rows, cols, tokens, dtype)
    out = torch.ops.gossamer.bitmap_linear(values, bits, pos, x, bias, *sizes, activation)
    return excess(out, x, dense, bias, activation, (cols + 4) * 2.0**-24)


def check(pool: Any) -> dict[str, Any]:
    """Run every case, and say which are wrong."""
    wanted: dict[str, tuple[str, dict[str, object]]] = {}
    with collected(wanted):
        for _, case in cases():
            case()
    compile_all(pool, wanted)
    wrong, worst, count = [], 0.0, 0
    for name, case in cases():
        torch.manual_seed(count)
        over = case()
        count, worst = count + 1, max(worst, over)
        if not over <= 1:
            wrong.append((name, round(over, 2)))
    torch.cuda.synchronize()
    print(f"check: {count} cases, {len(wrong)} wrong; largest error over its bound {worst:.3f}")
    for name, over in wrong[:40]:
        print("  wrong:", name, over)
    return {"cases": count, "wrong": wrong, "worst": worst}


# -- fast


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
    for m in (4, 8):
        weight = pattern(rows, cols, m)
        packed = gs.from_dense(weight, PackedVNM("all", 2, m))
        shared, meta, sizes = vnm_cuda.vnm_kernels.vnm_of(packed.structure)
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
    for percent in (50, 60, 70, 80):
        values, (bits_, pos, bsizes) = pack_bitmap(unstructured(rows, cols, percent / 100))
        setsb = copies((values, bits_, pos), held(values, bits_, pos))
        yield (
            f"bitmap {percent}",
            lambda x, sets=setsb, z=bsizes: [lambda s=s: linear.bitmap_linear(*s, x, None, *z, 0) for s in sets],
            64,
        )


def sweep(pool: Any) -> list[dict[str, Any]]:
    """Microseconds of every contender at every number of tokens."""
    found = []
    for rows, cols in SHAPES:
        torch.manual_seed(0)
        everyone = list(contenders(rows, cols))
        inputs = {n: torch.randn(n, cols, device="cuda").bfloat16() for n in TOKENS}
        wanted: dict[str, tuple[str, dict[str, object]]] = {}
        with collected(wanted):
            for n, x in inputs.items():
                for _, make, most in everyone[2:]:
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


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each contender, microseconds by tokens."""
    names = [name for name in rows[0] if name not in ("shape", "tokens")]
    shape = " x ".join(map(str, rows[0]["shape"]))
    lines = [f"| {shape}, tokens | " + " | ".join(str(r["tokens"]) for r in rows) + " |", "|---|" + "--:|" * len(rows)]
    for name in names:
        lines.append(f"| {name} | " + " | ".join(f"{r[name]:.1f}" if name in r else "" for r in rows) + " |")
    return "\n".join(lines)


def eager(pool: Any) -> dict[str, float]:
    """Microseconds of CPU time of a call, on a problem so small that the GPU waits for the CPU."""
    dense = pattern(512, 512, 8)
    packed = gs.from_dense(dense, PackedVNM("all", 2, 8))
    shared, meta, sizes = vnm_cuda.vnm_kernels.vnm_of(packed.structure)
    p8 = pack8(dense, 8)
    values, (bits, pos, bsizes) = pack_bitmap(dense)
    arguments, ops, found = (packed.values(), shared, meta), torch.ops.gossamer, {}
    for tokens in (8, 64, 600):
        x = torch.randn(tokens, 512, device="cuda").bfloat16()
        ways: dict[str, Call] = {
            "dense": lambda x=x: F.linear(x, dense),
            "2:8 F.linear": lambda x=x: F.linear(x, packed),
            "2:8 Python": lambda x=x: vnm_cuda.linear(*arguments, x, None, *sizes, 0),
            "2:8 vnm_linear": lambda x=x: ops.vnm_linear.default(*arguments, x, None, *sizes, 0),
            "2:8 vnm_forward": lambda x=x: ops.vnm_forward.default(*arguments, x, None, *sizes, 0),
            "2:8 fp8": lambda x=x: ops.vnm_8bit.default(*p8[:4], x, None, *p8.sizes, 0),
        }
        if tokens <= 64:
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


PARTS: dict[str, Callable[[Any], Any]] = {"check": check, "sweep": sweep, "eager": eager}


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


if __name__ == "__main__":
    main()
