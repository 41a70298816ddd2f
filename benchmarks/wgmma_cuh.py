"""Writes src/gossamer/native/cuda/wgmma.cuh: inline assembly must name every register, and no macro can count."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).resolve().parent.parent / "src" / "gossamer" / "native" / "cuda" / "wgmma.cuh"
TOKENS = (8, 16, 32, 64, 96, 128, 256)
HEAD = """// wgmma.sp with A in registers: d += A B, one warpgroup, 64 rows x N tokens, 64 bytes of columns of B.
// Written by benchmarks/wgmma_cuh.py: inline assembly must name every register, and no macro can count.
//
// WEIGHT: 0 both operands are of the type ELEMENT, SELECT says which threads have the metadata; 1 both are e4m3, 2
// int8: all threads have it, and columns of B lie side by side (TRANS = 0).
#pragma once
#if WEIGHT == 2
typedef int Sum;
#else
typedef float Sum;
#endif
#ifndef GS_INSTEAD  // see ptx.cuh
#if WEIGHT == 2
#define GS_KIND "k64.s32.s8.s8"
#define GS_TAIL(turn) ""
#define GS_SUM "+r"
#elif WEIGHT == 1
#define GS_KIND "k64.f32.e4m3.e4m3"
#define GS_TAIL(turn) ", 1, 1"
#define GS_SUM "+f"
#else
#if ELEMENT == 1
#define GS_KIND "k32.f32.bf16.bf16"
#else
#define GS_KIND "k32.f32.f16.f16"
#endif
#define GS_TAIL(turn) ", 1, 1, " turn
#define GS_SUM "+f"
#endif
"""


def function(tokens: int) -> str:
    """Return the function for so many tokens, which has tokens / 2 sums a thread."""
    sums = tokens // 2
    lines = [[f"%{i}" for i in range(start, min(start + 16, sums))] for start in range(0, sums, 16)]
    named = "\n".join(f'    "{", ".join(line)}{", " if line is not lines[-1] else ""}"' for line in lines)
    bound = ",\n".join(
        "     " + ", ".join(f"GS_SUM(d[{i}])" for i in range(start, min(start + 8, sums)))
        for start in range(0, sums, 8)
    )
    a = ", ".join(f"%{sums + i}" for i in range(4))
    b, meta, select, keep, turn = (f"%{sums + 4 + i}" for i in range(5))
    return f"""template <int SELECT, int TRANS>
__device__ __forceinline__ void wgmma_sp(Sum (&d)[{sums}], uint4 a, unsigned long long b, unsigned meta, int keep) {{
  asm volatile(
    "{{\\n.reg .pred p;\\nsetp.ne.b32 p, {keep}, 0;\\n"
    "wgmma.mma_async.sp.sync.aligned.m64n{tokens}" GS_KIND " {{"
{named}
    "}}, {{{a}}}, {b}, {meta}, {select}, p" GS_TAIL("{turn}") ";\\n}}\\n"
    :
{bound}
    : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(meta), "n"(SELECT), "r"(keep), "n"(TRANS));
}}
"""


def text() -> str:
    """Return the whole file."""
    return "\n".join([HEAD, *(function(tokens) for tokens in TOKENS), "#endif\n"])


if __name__ == "__main__":
    FILE.write_text(text())
