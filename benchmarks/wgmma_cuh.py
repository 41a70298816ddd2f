"""Writes src/gossamer/native/cuda/wgmma.cuh: inline assembly must name every register, and no macro can count."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "src" / "gossamer" / "native" / "cuda" / "wgmma.cuh"
HEAD = """// wgmma.sp with A in registers: d += A B, one warpgroup, 64 rows x N tokens x 32 compacted columns.
// Written by benchmarks/wgmma_cuh.py: inline assembly must name every register, and no macro can count.
#pragma once
#ifndef GS_INSTEAD  // see ptx.cuh
#if ELEMENT == 1
#define GS_TYPE "bf16"
#else
#define GS_TYPE "f16"
#endif
"""


def function(tokens: int) -> str:
    """Return the function for so many tokens, which has tokens / 2 sums a thread."""
    sums = tokens // 2
    lines = [[f"%{i}" for i in range(start, min(start + 16, sums))] for start in range(0, sums, 16)]
    named = "\n".join(f'    "{", ".join(line)}{", " if line is not lines[-1] else ""}"' for line in lines)
    bound = ",\n".join(
        "     " + ", ".join(f'"+f"(d[{i}])' for i in range(start, start + 8)) for start in range(0, sums, 8)
    )
    a = ", ".join(f"%{sums + i}" for i in range(4))
    b, meta, select, keep, turn = (f"%{sums + 4 + i}" for i in range(5))
    return f"""template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(float (&d)[{sums}], uint4 a, unsigned long long b, unsigned meta, int keep) {{
  asm volatile(
    "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {keep}, 0;\\n"
    "wgmma.mma_async.sp.sync.aligned.m64n{tokens}k32.f32." GS_TYPE "." GS_TYPE " {{"
{named}
    "}}, {{{a}}}, {b}, {meta}, {select}, p, 1, 1, {turn};\\n}}\\n"
    :
{bound}
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}}
"""


def text() -> str:
    """Return the whole file."""
    return "\n".join([HEAD, *(function(tokens) for tokens in (128, 256)), "#endif\n"])


if __name__ == "__main__":
    FILE.write_text(text())
