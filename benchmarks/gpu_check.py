"""Every GPU kernel for packed V:N:M and bitmaps against float64, at sizes below, at and above its tiles.

python benchmarks/gpu_check.py             1032 cases; prints those whose error is above its bound
python benchmarks/gpu_check.py --every 40  one of 40 of them, for compute-sanitizer
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src"), str(Path(__file__).resolve().parent.parent)]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor  # noqa: E402

import gossamer as gs  # noqa: E402
from benchmarks.gpu_common import Wanted, collected, compile_all, pattern, unstructured  # noqa: E402
from gossamer.formats import PackedVNM  # noqa: E402
from gossamer.kernels.bitmap.eight import pack_bitmap8  # noqa: E402
from gossamer.kernels.bitmap.operators import pack_bitmap  # noqa: E402
from gossamer.kernels.bitmap.planes import unpack_planes  # noqa: E402
from gossamer.kernels.product import activated  # noqa: E402
from gossamer.kernels.vnm import products  # noqa: E402
from gossamer.kernels.vnm.eight import decode8, pack8, quantize  # noqa: E402
from gossamer.kernels.vnm.weight_only import decode_weight_only, pack_weight_only  # noqa: E402
from gossamer.native.cuda import function  # noqa: E402

E4M3 = torch.float8_e4m3fn


def excess(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor, activation: int, sums: float) -> float:
    """The largest error over its bound: the rounding of the result, and of sums of k terms with that many bits."""
    if products.function is not function:
        return 0.0  # kernels are only collected
    x, weight, bias = x.double(), weight.double(), bias.double()
    exact = activated(F.linear(x, weight, bias), activation)
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
                    yield f"8-bit bitmap {sparsity} {common}", lambda s=sparsity, c=common: check_bitmap8(s, *c)


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
    # tensor cores keep 13 bits of a sum of e4m3: of the products of 64 columns, and of each further 64
    sums = (4 * cols / m / 64 + 4) * 2.0**-13 if small is E4M3 else 2.0**-22
    return excess(out, token.float() * each[:, None], weight, bias, activation, sums)


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


def check_bitmap8(sparsity: float, rows: int, cols: int, tokens: int, dtype: torch.dtype, activation: int) -> float:
    packed = pack_bitmap8(unstructured(rows, cols, sparsity, dtype))
    x, bias = operands(rows, cols, tokens, dtype)
    out = torch.ops.gossamer.bitmap_8bit(*packed[:4], x, bias, *packed.sizes, activation)
    token, each = quantize(x, None, cols, 4, E4M3)
    weight = unpack_planes(*packed[:3], *packed.sizes).float() * packed.scale[:, None]
    return excess(out, token.float() * each[:, None], weight, bias, activation, (cols + 4) * 2.0**-24)


def check(every: int) -> bool:
    """Run the cases, say which are wrong, and return whether none is."""
    wanted: Wanted = {}
    chosen = list(cases())[::every]
    with multiprocessing.get_context("fork").Pool() as pool:  # before CUDA is initialised here
        with collected(wanted):
            for _, case in chosen:
                case()
        compile_all(pool, wanted)
    wrong, worst = [], 0.0
    for number, (name, case) in enumerate(chosen):
        torch.manual_seed(number)
        over = case()
        worst = max(worst, over)
        if not over <= 1:
            wrong.append((name, round(over, 2)))
    torch.cuda.synchronize()
    print(f"{len(chosen)} cases, {len(wrong)} wrong; largest error over its bound {worst:.3f}")
    for name, over in wrong[:40]:
        print("  wrong:", name, over)
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1)
    with torch.no_grad():
        return 0 if check(parser.parse_args().every) else 1


if __name__ == "__main__":
    sys.exit(main())
