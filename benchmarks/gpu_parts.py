"""The parts of a language model's layer beside single products, on a GPU: gated MLPs, attention that decodes, rounding.

    python benchmarks/gpu_parts.py                  writes results/gpu-parts.json and the tables of the docs
    python benchmarks/gpu_parts.py --only gated     gated, attention or rounding
    python benchmarks/gpu_parts.py --kernels        gated products by the kernel for few tokens and by that for many

Sizes of Llama 8B, bf16, random numbers. Microseconds by CUDA graphs, contenders interleaved, medians of 20 replays;
weights and caches go round copies that together are more than twice the second cache. The activation and the product
behind two separate kernels are one kernel of torch.compile. Attention: 32 heads, 8 of keys, 128 wide, a static cache of
which some places are in use, and a mask that says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.gpu_common import Wanted, collected, compile_all, pattern  # noqa: E402
from benchmarks.gpu_plot import DOCS  # noqa: E402
from benchmarks.gpu_tokens import copies, held  # noqa: E402
from gossamer.formats import PackedVNM  # noqa: E402
from gossamer.kernels.vnm import gated  # noqa: E402
from gossamer.kernels.vnm.eight import pack8  # noqa: E402
from gossamer.kernels.vnm.operators import columns_of, vnm_of  # noqa: E402
from gossamer.models.pack import graphs  # noqa: E402

#: Rows of gate and of up, columns and m: all neurons at 2:4, and those that 2:8 of down reads.
GATED = ((14336, 4096, 4), (7168, 4096, 8))
TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 2048)
#: Sequences, places of the cache, and how many of them are in use.
CACHES = (
    (1, 256, 112),
    (16, 256, 112),
    (64, 256, 112),
    (128, 256, 112),
    (1, 4096, 1000),
    (16, 4096, 1000),
    (16, 4096, 4096),
)
#: Columns and m of what is rounded to 8 bits.
ROUNDED = ((4096, 4), (4096, 8), (7168, 4), (14336, 8))
Call = Callable[[], Any]


@torch.compile(dynamic=True)
def joined(gate: Tensor, up: Tensor) -> Tensor:
    """What follows two products."""
    return F.silu(gate) * up


def gated_calls(rows: int, cols: int, m: int) -> dict[str, Callable[[Tensor], list[Call]]]:
    """Of each contender: its calls for activations."""
    ops, both = torch.ops.gossamer, pattern(2 * rows, cols, m)
    parts = both.chunk(2)
    dense = copies(tuple(p.contiguous() for p in parts), held(both))
    two = [gs.from_dense(part, PackedVNM("all", 2, m)) for part in parts]
    (shared, meta, _), (_, other, _) = (vnm_of(each.structure) for each in two)
    at = columns_of(shared, m) if m != 4 else shared
    sets = copies((two[0].values(), meta, two[1].values(), other), 2 * two[0].nbytes)
    eight = [pack8(part, m) for part in parts]
    sets8 = copies((*eight[0][:4], *eight[1][:4]), 2 * held(*eight[0][:4]))
    none = shared.new_empty(0)

    def separate(x: Tensor) -> list[Call]:
        def call(s: tuple[Tensor, ...]) -> Tensor:
            narrow = x if m == 4 else x.index_select(1, at)  # once for both, as in a trace
            z = (rows, narrow.shape[1], 0, 4, 0)
            return joined(
                ops.vnm_forward(s[0], none, s[1], narrow, None, *z), ops.vnm_forward(s[2], none, s[3], narrow, None, *z)
            )

        return [lambda s=s: call(s) for s in sets]

    def one(x: Tensor) -> list[Call]:
        def call(s: tuple[Tensor, ...]) -> Tensor:
            narrow = x if m == 4 else x.index_select(1, at)
            return ops.vnm_gated(*s, none, None, None, narrow, rows, narrow.shape[1], 4, 3)

        return [lambda s=s: call(s) for s in sets]

    def separate8(x: Tensor) -> list[Call]:
        z = (rows, cols, 0, m, 0)
        return [lambda s=s: joined(ops.vnm_8bit(*s[:4], x, None, *z), ops.vnm_8bit(*s[4:], x, None, *z)) for s in sets8]

    def one8(x: Tensor) -> list[Call]:
        return [lambda s=s: ops.vnm_gated(s[0], s[2], s[4], s[6], s[1], s[3], s[7], x, rows, cols, m, 3) for s in sets8]

    return {
        "cuBLAS bf16": lambda x: [lambda w=w: joined(F.linear(x, w[0]), F.linear(x, w[1])) for w in dense],
        f"2:{m}, two kernels and one": separate,
        f"2:{m}, one kernel": one,
        f"2:{m} fp8, two kernels and one": separate8,
        f"2:{m} fp8, one kernel": one8,
    }


def compiled(pool: Any, everyone: dict[str, Callable[[Tensor], list[Call]]], tokens: list[int], cols: int) -> None:
    """Compile what these calls launch by all cores."""
    wanted: Wanted = {}
    inputs = [torch.zeros(n, cols, device="cuda").bfloat16() for n in tokens]
    with collected(wanted):
        for x in inputs:
            for name, make in everyone.items():
                if "cuBLAS" not in name:
                    make(x)[0]()
    compile_all(pool, wanted)


def gated_part(pool: Any) -> list[dict[str, Any]]:
    """Both products, the activation and the multiplication."""
    found = []
    for rows, cols, m in GATED:
        torch.manual_seed(0)
        everyone = gated_calls(rows, cols, m)
        compiled(pool, everyone, list(TOKENS), cols)
        for n in TOKENS:
            x = torch.randn(n, cols, device="cuda").bfloat16()
            us = graphs.replayed({name: make(x) for name, make in everyone.items()})
            found.append({"case": f"{rows} x {cols}, 2:{m}", "tokens": n, **rounded(us)})
        del everyone
        torch.cuda.empty_cache()
    return found


def by_kernels(pool: Any) -> list[dict[str, Any]]:
    """One kernel, by either of the two: where does the one for many tokens become faster?"""
    found: list[dict[str, Any]] = []
    for rows, cols, m in GATED:
        everyone = {k: v for k, v in gated_calls(rows, cols, m).items() if "one kernel" in k}
        rows_of: dict[int, dict[str, Any]] = {}
        for few in (0, 1 << 30):
            with patch.object(gated, "most_of_some", lambda *given, few=few: few):
                gated.KINDS._calls.clear()
                compiled(pool, everyone, [32, 64, 128, 256, 512], cols)
                for n in (32, 64, 128, 256, 512):
                    x = torch.randn(n, cols, device="cuda").bfloat16()
                    with patch.object(torch.ops.gossamer, "vnm_gated", gated.KINDS.run):  # not what is remembered
                        us = graphs.replayed({name: make(x) for name, make in everyone.items()})
                    row = rows_of.setdefault(n, {"case": f"{rows} x {cols}, 2:{m}", "tokens": n})
                    row |= {f"{k}, {'few' if few else 'many'}": v for k, v in rounded(us).items()}
        found += rows_of.values()
    return found


def attention_calls(batch: int, places: int, used: int) -> dict[str, list[Call]]:
    """Of each contender: its calls, for several caches."""
    q = torch.randn(batch, 32, 1, 128, device="cuda").bfloat16()
    k, v = (torch.randn(batch, 8, places, 128, device="cuda").bfloat16() for _ in range(2))
    mask = (torch.arange(places, device="cuda") < used).expand(batch, 1, 1, places).contiguous()
    each, rows, ours = copies((k, v), held(k, v)), q.view(batch, 8, 4, 128), torch.ops.gossamer.decode_attention

    def repeated(k: Tensor, v: Tensor) -> Tensor:
        k, v = (x.repeat_interleave(4, 1) for x in (k, v))
        return F.scaled_dot_product_attention(q, k, v, mask)

    return {
        "SDPA, heads repeated": [lambda s=s: repeated(*s) for s in each],
        "SDPA, rows of one matrix": [lambda s=s: F.scaled_dot_product_attention(rows, *s, mask) for s in each],
        "our kernel": [lambda s=s: ours(q, *s, mask, 128**-0.5) for s in each],
    }


def attention(pool: Any) -> list[dict[str, Any]]:
    """One query a head over a static cache."""
    found = []
    for batch, places, used in CACHES:
        us = rounded(graphs.replayed(attention_calls(batch, places, used)))
        floor = round(2 * batch * 8 * used * 128 * 2 / 4.3e6, 1)
        found.append({"case": f"{batch} x {used} of {places}", **us, "bytes at 4.3 TB/s": floor})
    return found


def rounding(pool: Any) -> list[dict[str, Any]]:
    """Activations to e4m3, by the launch before a product in 8 bits: times of both, less that of the product alone."""
    from gossamer.kernels.vnm.eight_cuda import quantize_launch, quantized_buffer
    from gossamer.native.cuda.calls import Address

    found = []
    for cols, m in ROUNDED:
        for n in (1, 16, 128, 2048):
            x, steps = torch.randn(n, cols, device="cuda").bfloat16(), -(-cols // (32 * m))
            shared = pack8(pattern(64, cols, m), m)[1]
            out = torch.empty(quantized_buffer(n, steps).shape, dtype=torch.uint8, device="cuda")
            run, grid, threads, rest = quantize_launch(x, cols, m, steps, 1, 0, (Address(0),) * 4)
            given = (x.data_ptr(), shared.data_ptr(), out.data_ptr(), out.data_ptr() + n * steps * 128, *rest[4:])
            us = graphs.replayed({"us": [lambda g=given, r=run, d=grid, t=threads: r(d, t, *g)]})
            moved = n * (2 * cols + 128 * steps)
            found.append({"case": f"{cols}, 2:{m}", "tokens": n, **rounded(us), "floor": round(moved / 4.3e6, 1)})
    return found


def rounded(us: dict[Any, float]) -> dict[Any, float]:
    """Seconds as microseconds."""
    return {name: round(1e6 * value, 1) for name, value in us.items()}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a line for each row."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = ["| " + " | ".join("" if n == "case" else n for n in names) + " |", "|---|" + "--:|" * (len(names) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(str(row.get(n, "")) for n in names) + " |" for row in rows)])


def gated_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: a table for each case, a column for each number of tokens."""
    out = []
    for case in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == case]
        names = list(dict.fromkeys(name for row in mine for name in row if name not in ("case", "tokens")))
        lines = [
            f"| {case}; tokens | " + " | ".join(str(r["tokens"]) for r in mine) + " |",
            "|---|" + "--:|" * len(mine),
        ]
        lines += [f"| {name} | " + " | ".join(str(r.get(name, "")) for r in mine) + " |" for name in names]
        out.append("\n".join(lines))
    return "\n\n".join(out)


PARTS: dict[str, Callable[[Any], list[dict[str, Any]]]] = {
    "gated": gated_part, "attention": attention, "rounding": rounding,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "gpu-parts.json")
    arguments = parser.parse_args()
    with multiprocessing.get_context("fork").Pool() as pool, torch.no_grad():  # before CUDA is initialised here
        if arguments.kernels:
            print(gated_table(by_kernels(pool)))
            return
        found: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
        found |= {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
        for name in PARTS if arguments.only is None else [arguments.only]:
            found[name] = PARTS[name](pool)
            print(gated_table(found[name]) if name == "gated" else table(found[name]), flush=True)
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    for name in ("gated", "attention"):  # those that the page shows
        if name in found:
            text = gated_table(found[name]) if name == "gated" else table(found[name])
            (DOCS / f"gpu-parts-{name}-table.md").write_text(text + "\n")


if __name__ == "__main__":
    main()
