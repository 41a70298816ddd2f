"""What the benchmarks of GPU kernels share: random weights, and kernels compiled by many processes at once."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.bitmap import cuda as bitmap_cuda
from gossamer.kernels.bitmap import eight_cuda as bitmap8_cuda
from gossamer.kernels.vnm import cuda as vnm_cuda
from gossamer.kernels.vnm import eight_cuda, gated, group, products, weight_only_cuda
from gossamer.native.cuda import calls
from gossamer.native.cuda.cache import cubin

#: Kernels to compile: a source and its macros.
Wanted = dict[str, tuple[str, dict[str, object]]]


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


class _Nothing:
    """Stands in for a kernel while the kernels of a run are collected."""

    parameters, shared, chained, handle = "", 0, False, 0

    def __call__(self, *arguments: object) -> None:
        return


@contextlib.contextmanager
def collected(wanted: Wanted) -> Iterator[None]:
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
        for module in (eight_cuda, weight_only_cuda, bitmap_cuda, bitmap8_cuda, gated, group):
            module.KINDS._calls.clear()


def _compile(pair: tuple[str, dict[str, object]]) -> str:
    try:
        cubin(pair[0], "sm_90a", pair[1])
    except Exception as error:
        return f"{pair}: {error}"
    return ""


def compile_all(pool: Any, wanted: Wanted) -> None:
    """Compile kernels that were collected."""
    start = time.perf_counter()
    for wrong in pool.map(_compile, list(wanted.values()), chunksize=1):
        if wrong:
            print(wrong[:2000])
    print(f"{len(wanted)} kernels compiled in {time.perf_counter() - start:.1f} s", flush=True)
