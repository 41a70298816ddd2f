"""What a user would write with numba, and the arrays of pydata/sparse: rivals of ``compiler_structures.py``.

Both are optional: without them the table has the other rivals alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_HERE = str(Path(__file__).parent)
_before = sys.path[:]
try:
    sys.path[:] = [p for p in sys.path if p != _HERE]  # numba asks for coverage, and would find our script of that name
    import numba
    import sparse
except ImportError:
    numba = sparse = None
finally:
    sys.path[:] = _before


def _spmv(pos: Any, crd: Any, val: Any, x: Any, out: Any) -> None:
    for i in range(len(pos) - 1):
        total = np.float32(0)
        for q in range(pos[i], pos[i + 1]):
            total += val[q] * x[crd[q]]
        out[i] = total


def _spmm(pos: Any, crd: Any, val: Any, x: Any, out: Any) -> None:
    for i in range(len(pos) - 1):
        out[i] = 0
        for q in range(pos[i], pos[i + 1]):
            out[i] += val[q] * x[crd[q]]


def _sddmm(pos: Any, crd: Any, val: Any, left: Any, right: Any, out: Any) -> None:
    for i in range(len(pos) - 1):
        for q in range(pos[i], pos[i + 1]):
            total = np.float32(0)
            for d in range(left.shape[1]):
                total += left[i, d] * right[crd[q], d]
            out[q] = val[q] * total


def available() -> bool:
    """Are both packages installed?"""
    return numba is not None


def _built(function: Any) -> Any:
    return numba.njit(fastmath=True)(function)


def rows(matrix: Any) -> dict[str, Callable[..., Any]]:
    """Products of a scipy matrix in CSR with dense operands: "spmv", "spmm" and "sddmm"."""
    pos, crd, val = matrix.indptr, matrix.indices, matrix.data
    spmv, spmm, sddmm = _built(_spmv), _built(_spmm), _built(_sddmm)

    def run(kernel: Any, shape: Callable[..., tuple[int, ...]]) -> Callable[..., Any]:
        def call(*dense: Any) -> Any:
            out = np.empty(shape(*dense), np.float32)
            kernel(pos, crd, val, *dense, out)
            return out

        return call

    n = matrix.shape[0]
    return {
        "spmv": run(spmv, lambda x: (n,)),
        "spmm": run(spmm, lambda x: (n, x.shape[1])),
        "sddmm": run(sddmm, lambda q, y: (len(val),)),
    }


def pydata(matrix: Any) -> Any:
    """Return a scipy matrix as an array of pydata/sparse."""
    return sparse.GCXS.from_scipy_sparse(matrix)
