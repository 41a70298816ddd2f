"""The limits of this machine, measured: the two lines of a roofline."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gossamer.native.build import build, load_built
from gossamer.native.cache import BuildError
from gossamer.native.library import isa

_SOURCE = Path(__file__).parent / "cpu" / "ceilings.cpp"
_FLAGS = {"avx512": ["-mavx512f", "-DWIDTH=16"], "avx2": ["-mavx2", "-mfma", "-DWIDTH=8"]}


@dataclass(frozen=True)
class Ceilings:
    """Measured ceilings of some cores together.

    Examples
    --------
    >>> Ceilings(threads=1, gflops=100.0, cache_gbytes=60.0, memory_gbytes=20.0).reachable(0.5)
    30.0
    """

    threads: int
    gflops: float
    """float32 multiply-adds from registers, counted as two operations."""
    cache_gbytes: float
    """Bytes read a second, of 8 MB a thread."""
    memory_gbytes: float
    """Bytes read a second, of 256 MB a thread."""

    def reachable(self, intensity: float) -> float:
        """The roofline bound in GFLOP/s at this arithmetic intensity, for data in the L3 cache."""
        return min(self.gflops, intensity * self.cache_gbytes)


@lru_cache(maxsize=8)
def ceilings(threads: int = 1) -> Ceilings | None:
    """Measure the limits of `threads` cores together, in about a second; None without a compiler or kernels.

    Every thread runs the same loop at the same time, and the results are added up.
    """
    have = isa()
    if have is None:
        return None
    try:
        library = load_built(build("ceilings", {"ceilings": (_SOURCE, _FLAGS.get(have, []))}, []))
    except (BuildError, OSError):
        return None
    library.fma_gflops.restype = library.read_gbytes.restype = ctypes.c_double
    library.read_gbytes.argtypes = [ctypes.c_int64]
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets go of the interpreter while a loop runs
        flops = sum(pool.map(lambda _: library.fma_gflops(), range(threads)))
        cache, memory = (
            sum(pool.map(lambda _, size=size: library.read_gbytes(size), range(threads)))
            for size in (8 << 20, 256 << 20)
        )
    return Ceilings(threads, flops, cache, memory)
