"""Unstructured weights on a GPU: bitmaps of bf16 and of FP8 against cuBLAS, dense, at 1 to 64 tokens.

    python benchmarks/gpu_bitmaps.py                   writes results/gpu-bitmaps.json and the table of the docs
    python benchmarks/gpu_bitmaps.py --shapes 1        only the first shape
    python benchmarks/gpu_bitmaps.py --variants        the FP8 kernel with other numbers of warps and bytes on their way
    python benchmarks/gpu_bitmaps.py --bf16            bf16 at 8 and 16 tokens, copies alone, and other plans

To compare an older commit, copy this file into its ``benchmarks`` and start it there: it runs the tree that it is in.

Random weights and masks, bf16 activations. Microseconds by CUDA graphs, contenders interleaved, medians of 20 replays;
weights go round copies that together are more than twice the second cache. FP8 is timed with the kernel that rounds the
activations, token by token, ``cublas fp8`` too (``torch._scaled_mm`` with a scale for each row and token, as a layer of
``gs.quantize_`` does it).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

from benchmarks.gpu_common import Wanted, collected, compile_all, unstructured  # noqa: E402
from benchmarks.gpu_tokens import copies, held, table  # noqa: E402
from gossamer.kernels.bitmap import cuda as bitmap_cuda  # noqa: E402
from gossamer.kernels.bitmap import eight_cuda, plan  # noqa: E402
from gossamer.kernels.bitmap.eight import pack_bitmap8  # noqa: E402
from gossamer.kernels.bitmap.operators import pack_bitmap  # noqa: E402
from gossamer.kernels.gpu import Kinds  # noqa: E402
from gossamer.kernels.quantized.dense import linear_dense8  # noqa: E402
from gossamer.kernels.vnm.eight import round8  # noqa: E402
from gossamer.models.pack import graphs  # noqa: E402

SHAPES = [(14336, 4096), (4096, 14336), (4096, 4096)]
TOKENS = [1, 8, 16, 32, 64]
TABLE = HERE.parent / "docs" / "explanation" / "gpu-bitmaps-table.md"
PERCENTS = (50, 60, 70, 80, 90)
Call = Callable[[], Any]
Make = Callable[[Tensor], list[Call]]


def contenders(rows: int, cols: int, percents: tuple[int, ...] = PERCENTS) -> Iterator[tuple[str, Make]]:
    """Of each: a name, and its calls for activations."""
    ops = torch.ops.gossamer
    dense = unstructured(rows, cols, 0.5)
    each = copies((dense,), held(dense))
    yield "cublas bf16", lambda x: [lambda w=w: F.linear(x, w) for (w,) in each]
    small = round8(dense, torch.float8_e4m3fn)
    eight = copies(small, held(*small))
    yield "cublas fp8", lambda x: [lambda s=s: linear_dense8(*s, x, None) for s in eight]
    for percent in percents:
        weight = unstructured(rows, cols, percent / 100)
        values, (bits, pos, sizes) = pack_bitmap(weight)
        sets = copies((values, bits, pos), held(values, bits, pos))
        yield (
            f"bitmap bf16 {percent}",
            lambda x, sets=sets, z=sizes: [lambda s=s: ops.bitmap_linear(*s, x, None, *z, 0) for s in sets],
        )
        packed = pack_bitmap8(weight)
        sets8 = copies(packed[:4], held(*packed[:4]))
        yield (
            f"bitmap fp8 {percent}",
            lambda x, sets=sets8, z=packed.sizes: [lambda s=s: ops.bitmap_8bit(*s, x, None, *z, 0) for s in sets],
        )


def compiled(pool: Any, everyone: dict[str, Make], inputs: dict[int, Tensor]) -> None:
    """Compile what these calls launch by all cores."""
    wanted: Wanted = {}
    with collected(wanted):
        for x in inputs.values():
            for name, make in everyone.items():
                if "bitmap" in name:
                    make(x)[0]()
    compile_all(pool, wanted)


def sweep(pool: Any, shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Microseconds of every contender at every number of tokens."""
    found = []
    for rows, cols in shapes:
        torch.manual_seed(0)
        everyone = dict(contenders(rows, cols))
        inputs = {n: torch.randn(n, cols, device="cuda").bfloat16() for n in TOKENS}
        compiled(pool, everyone, inputs)
        for n, x in inputs.items():
            us = graphs.replayed({name: make(x) for name, make in everyone.items()})
            found.append({"shape": [rows, cols], "tokens": n, **{k: round(1e6 * t, 2) for k, t in us.items()}})
        print(table([row for row in found if row["shape"] == [rows, cols]]), flush=True)
        print(bytes_of(rows, cols), flush=True)
        del everyone, inputs
        torch.cuda.empty_cache()
    return found


def bytes_of(rows: int, cols: int) -> str:
    """The bytes of the FP8 bitmaps, of those of dense FP8."""
    shares = []
    for percent in PERCENTS:
        packed = pack_bitmap8(unstructured(rows, cols, percent / 100))
        shares.append(f"{percent} %: {held(*packed[:3]) / (rows * cols):.3f}")
    return "bytes of dense FP8: " + ", ".join(shares)


def variants(pool: Any) -> None:
    """The FP8 kernel with other plans, and how long the rounding of x takes alone."""
    rows, cols = SHAPES[0]
    plans = [(warps, flight) for warps in (8, 12, 16) for flight in (32, 64, 96, 128)]
    for percent in (50, 80):
        packed = pack_bitmap8(unstructured(rows, cols, percent / 100))
        sets = copies(packed[:4], held(*packed[:4]))
        for tokens in (8, 16):
            x = torch.randn(tokens, cols, device="cuda").bfloat16()
            wanted: Wanted = {}
            with collected(wanted):
                for each in plans:
                    planned(each, x, sets[:1], packed.sizes)
            compile_all(pool, wanted)
            calls: dict[str, list[Call]] = {
                f"{warps} warps, {flight} KB": planned((warps, flight), x, sets, packed.sizes)
                for warps, flight in plans
            }
            calls["rounding"] = [lambda x=x: torch.ops.gossamer.quantize_8bit(x, False)] * 4
            us = graphs.replayed(calls)
            print(f"{percent} %, {tokens} tokens:", {k: round(1e6 * t, 2) for k, t in us.items()}, flush=True)


def planned(numbers: tuple[int, int], x: Tensor, sets: list[tuple[Tensor, ...]], sizes: tuple[int, int]) -> list[Call]:
    """Calls whose kernel has at most so many warps, and so many KB of pieces on their way."""
    own = Kinds(6, eight_cuda.prepare, eight_cuda.decide, eight_cuda.dense_linear, 4)
    with patch.object(plan, "WARPS", numbers[0]), patch.object(plan, "FLIGHT", numbers[1] * 1024):
        own.run(*sets[0], x, None, *sizes, 0)
    return [lambda s=s: own.run(*s, x, None, *sizes, 0) for s in sets]


#: Of the bf16 kernel: most warps, KB on their way, warps that share x, macros.
PLANS: dict[str, tuple[int, int, int, dict[str, int]]] = {
    "as planned": (16, 64, 0, {}),
    "copies only": (16, 64, 0, {"COPIES_ONLY": 1}),
    "48 KB": (16, 48, 0, {}),
    "96 KB": (16, 96, 0, {}),
    "12 warps, 96 KB": (12, 96, 0, {}),
    "teams of 2": (16, 64, 2, {}),
}


def bf16(pool: Any, shapes: list[tuple[int, int]]) -> None:
    """The bf16 kernel at 8 and 16 tokens, against cuBLAS; with other plans at 50 and 80 % of the first shape."""
    for rows, cols in shapes:
        torch.manual_seed(0)
        dense = unstructured(rows, cols, 0.5)
        each = copies((dense,), held(dense))
        weights = {}
        for percent in PERCENTS:
            values, (bits, pos, sizes) = pack_bitmap(unstructured(rows, cols, percent / 100))
            weights[percent] = copies((values, bits, pos), held(values, bits, pos)), sizes
            print(f"{percent} %: {held(values, bits, pos) / held(dense):.3f} of the bytes of dense", flush=True)
        for tokens in (8, 16):
            x = torch.randn(tokens, cols, device="cuda").bfloat16()
            wanted: Wanted = {}
            tried = {
                (percent, name): (sets, sizes, plans)
                for percent, (sets, sizes) in weights.items()
                for name, plans in PLANS.items()
                if name in ("as planned", "copies only") or (percent in (50, 80) and rows > cols)
            }
            with collected(wanted):
                for sets, sizes, plans in tried.values():
                    planned16(plans, x, sets[:1], sizes)
            compile_all(pool, wanted)
            calls: dict[str, list[Call]] = {"cublas": [lambda w=w, x=x: F.linear(x, w) for (w,) in each]}
            for (percent, name), (sets, sizes, plans) in tried.items():
                calls[f"{percent} %, {name}"] = planned16(plans, x, sets, sizes)
            us = {name: round(1e6 * t, 2) for name, t in graphs.replayed(calls).items()}
            for name, t in us.items():
                print(f"{rows} x {cols}, {tokens} tokens: {name:24} {t:6.2f} us {us['cublas'] / t:5.2f}x", flush=True)
        del weights, each
        torch.cuda.empty_cache()


def planned16(
    numbers: tuple[int, int, int, dict[str, int]], x: Tensor, sets: list[tuple[Tensor, ...]], sizes: tuple[int, ...]
) -> list[Call]:
    """Calls of the bf16 kernel as in :data:`PLANS`."""
    warps, flight, team, macros = numbers
    own = Kinds(5, bitmap_cuda.prepare, bitmap_cuda.decide, bitmap_cuda.dense_linear, 3)
    product, divided = plan.product, plan.divided

    def changed(*arguments: Any) -> Any:
        launch = product(*arguments)
        return launch._replace(macros={**launch.macros, **macros})

    def teams(rows: int, cluster: int, eights: int, processors: int, given: int) -> plan.Shape:
        return divided(rows, cluster, eights, processors, team or given)

    with (
        patch.object(plan, "WARPS", warps),
        patch.object(plan, "FLIGHT", flight * 1024),
        patch.object(plan, "product", changed),
        patch.object(plan, "divided", teams),
    ):
        own.run(*sets[0], x, None, *sizes, 0)
    return [lambda s=s: own.run(*s, x, None, *sizes, 0) for s in sets]


def published(rows: list[dict[str, Any]]) -> str:
    """Markdown of all shapes."""
    shapes = dict.fromkeys(tuple(row["shape"]) for row in rows)
    return "\n\n".join(table([row for row in rows if tuple(row["shape"]) == shape]) for shape in shapes) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=len(SHAPES))
    parser.add_argument("--variants", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu-bitmaps.json")
    arguments = parser.parse_args()
    with multiprocessing.get_context("fork").Pool() as pool, torch.no_grad():  # before CUDA is initialised here
        if arguments.variants:
            variants(pool)
            return
        if arguments.bf16:
            bf16(pool, SHAPES[: min(arguments.shapes, 2)])
            return
        found = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        rows = sweep(pool, SHAPES[: arguments.shapes])
        arguments.out.write_text(json.dumps({**found, "sweep": rows}, indent=1) + "\n")
        TABLE.write_text(published(rows))


if __name__ == "__main__":
    main()
