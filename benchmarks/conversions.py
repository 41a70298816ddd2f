"""Conversions between formats: compiled, by torch's sort, by scipy, and by torch itself where it has one.

    python benchmarks/conversions.py [--quick] [--alone] [--out FILE]

Every pair of formats of a matrix of 8,000 rows with 1 % of its entries, and of tensors of 3 and 4 dimensions with
600,000. The source is one whose structure nothing is known about yet, so everything that a conversion does is in its
time; ways that are compared take turns, and the fastest turn of each counts.

scipy leaves the entries of COO and the blocks of BSR in the order in which it comes to them, and its COO shares memory
with the CSR that it was: ``scipy_ms`` is the time to the same result as ours, sorted and with memory of its own, and
``scipy_as_it_comes_ms`` that of its own call where it is another.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import scipy.sparse
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE.parent)]

import gossamer as gs  # noqa: E402 - found by the line above
from benchmarks import compiler  # noqa: E402
from benchmarks.compiler import matrix, race  # noqa: E402
from gossamer.compiler.convert import restack  # noqa: E402
from gossamer.formats import PackedCSR, PackedNear, PackedNM  # noqa: E402
from gossamer.kernels.blocks import operators as block_kernels  # noqa: E402
from gossamer.kernels.csr import operators as kernels  # noqa: E402
from gossamer.kernels.rows import operators as packed_kernels  # noqa: E402

RESULT = HERE / "results" / "conversions.json"

_FORMATS = {
    "csr": gs.CSR(), "csc": gs.CSC(), "coo": gs.COO(), "dcsr": gs.DCSR(), "csf": gs.CSF(), "bsr": gs.BSR((4, 4)),
    "ell": gs.ELL(), "masked": gs.Masked(), "packed": gs.formats.PackedCSR(), "dense": gs.Dense(),
    "dense-compressed, 2 0 1": gs.Format("dense", "dense", "compressed", order=(2, 0, 1)),
    "csf, 3 1 0 2": gs.Format(*("compressed",) * 4, order=(3, 1, 0, 2)),
}  # fmt: skip
_TWO = ("csr", "csc", "coo", "dcsr", "bsr", "ell", "packed")
_THREE, _FOUR = ("coo", "csf", "dense-compressed, 2 0 1"), ("coo", "csf", "csf, 3 1 0 2")


def conversions(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of conversions: compiled, by torch's sort, by scipy, and by torch itself where it has one."""
    a, found = matrix(*(2000, 0.01, "uniform") if quick else (8000, 0.01, "uniform")), []
    pairs = [(s, t) for s in ("dense", *_TWO) for t in ("dense", *_TWO) if s != t]
    for source, target in pairs[::7] if quick else pairs:
        found.append(_conversion(a, source, target))
    for names, shape in ((_THREE, (300, 400, 500)), (_FOUR, (60, 80, 90, 100))):
        generator = torch.Generator().manual_seed(0)
        keys = torch.randint(math.prod(shape), (60_000 if quick else 600_000,), generator=generator).unique()
        t = gs.core.join.from_entries(keys, torch.randn(keys.numel(), generator=generator), shape, gs.COO())
        found += [_conversion(t, s, g) for s in names for g in names if s != g][: 2 if quick else None]
    return found


def _conversion(a: gs.SparseTensor, source: str, target: str) -> dict[str, Any]:
    x, format = a.to_format(_FORMATS[source]), _FORMATS[target]
    calls = [(_converted, x, format, True), (_converted, x, format, False)]
    kinds = ("csr", "csc", "coo", "bsr", "dense")
    both = source in kinds and target in kinds and a.dim() == 2
    names = ["ours_ms", "by_torchs_sort_ms"]
    for name, other in (("scipy_ms", _scipys), ("scipy_as_it_comes_ms", _as_it_comes), ("torch_ms", _torchs)):
        if both and (call := other(a, source, target)) is not None:
            names.append(name)
            calls.append(call)
    for _ in range(2):  # kernels are loaded, and memory is in the pages that it will have
        _converted(x, format, True)
    times = race(*calls, budget=0.1)
    about = {"from": source, "to": target, "shape": list(a.shape), "entries": a.nnz}
    row = about | {name: round(ms, 3) for name, ms in zip(names, times, strict=True)}
    print(*row.values(), sep="  ", flush=True)
    return row


def transposes(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds of what a gradient needs once for each pattern: packed rows and blocks of the transpose."""
    shape, found = (256, 512) if quick else (768, 3072), []
    for pattern, format in (
        ("90%", PackedCSR()),
        ("2:4", PackedNM(2, 4)),
        ("50%", PackedNear()),
        ("90%", gs.BSR((4, 4))),
    ):
        generator = torch.Generator().manual_seed(0)
        weight: Any = gs.sparsify(torch.randn(shape, generator=generator), pattern, format=format)
        times = race((_transposed, weight, True), (_transposed, weight, False), budget=0.1)
        row = {"format": repr(format), "pattern": pattern, "shape": list(shape), "entries": weight.nnz}
        found.append(row | {"ours_ms": round(times[0], 3), "by_torchs_sort_ms": round(times[1], 3)})
        print(*found[-1].values(), sep="  ", flush=True)
    return found


def _transposed(weight: Any, compiled: bool) -> None:
    packed_kernels._transposes.clear()
    kernels._transposes.clear()
    before, restack.LEAST = restack.LEAST, restack.LEAST if compiled else 1 << 62
    try:
        if isinstance(weight.format, gs.BSR):
            (pos, crd), (_, cols) = block_kernels.blocks_of(weight.structure)
            kernels.transpose_of(pos, crd, pos.numel() - 1, -(-cols // 4))
        else:
            rows = packed_kernels.rows_of(weight.structure)
            packed_kernels._transpose(*rows.arrays, rows.sizes)
    finally:
        restack.LEAST = before


def _scipys(a: gs.SparseTensor, source: str, target: str) -> tuple[Any, ...]:
    """The same by scipy: entries and blocks in order, in memory of its own."""
    own, *rest = _scipys_own(a, source, target)
    if target == "bsr":
        return (lambda: _sorted(own(*rest)),)
    if target == "coo" and source != "dense":
        have = own.__self__
        return (lambda: have.asformat("csr").asformat("coo", copy=source == "csr"),)
    return (own, *rest)


def _as_it_comes(a: gs.SparseTensor, source: str, target: str) -> tuple[Any, ...] | None:
    """Scipy's own call, where more is needed for the same result."""
    return _scipys_own(a, source, target) if target == "bsr" or (target == "coo" and source != "dense") else None


def _sorted(blocks: Any) -> Any:
    blocks.sort_indices()
    return blocks


def _scipys_own(a: gs.SparseTensor, source: str, target: str) -> tuple[Any, ...]:
    """What scipy does when asked for a format."""
    matrix: Any = a.to_scipy()
    if source == "dense":
        dense = matrix.toarray()
        classes = {"csr": scipy.sparse.csr_array, "csc": scipy.sparse.csc_array, "coo": scipy.sparse.coo_array}
        return (classes[target], dense) if target in classes else (lambda: scipy.sparse.csr_array(dense).tobsr((4, 4)),)
    have = _sorted(matrix.tobsr((4, 4))) if source == "bsr" else matrix.asformat(source)
    if target == "dense":
        return (have.toarray,)
    return (have.tobsr, (4, 4)) if target == "bsr" else (have.asformat, target)


def _torchs(a: gs.SparseTensor, source: str, target: str) -> tuple[Any, ...] | None:
    """The same by torch.sparse, with its 64-bit indices; None if it can't."""
    dense = a.to_dense()
    layouts = {"csr": torch.sparse_csr, "csc": torch.sparse_csc, "coo": torch.sparse_coo, "bsr": torch.sparse_bsr}

    def to(t: torch.Tensor, name: str) -> torch.Tensor:
        if name == "dense":
            return t.to_dense()
        return t.to_sparse(layout=layouts[name], **({"blocksize": (4, 4)} if name == "bsr" else {}))

    try:
        have = dense if source == "dense" else to(dense, source)
        to(have, target)
    except (RuntimeError, NotImplementedError):
        return None
    return (to, have, target)


def _converted(x: Any, format: gs.Format, compiled: bool) -> torch.Tensor:
    """Convert a tensor whose structure nothing is known about yet."""
    before, restack.LEAST = restack.LEAST, restack.LEAST if compiled else 1 << 62
    try:
        if not isinstance(x, gs.SparseTensor):
            return gs.from_dense(x, format)
        structure = gs.formats.Structure(x.format, x.shape, x.structure.arrays, x.structure.device)
        return gs.SparseTensor(x.values(), structure).to_format(format)
    finally:
        restack.LEAST = before


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means and the worst of how many times faster it is than each other way."""
    out = {}
    for other in ("by_torchs_sort_ms", "scipy_ms", "scipy_as_it_comes_ms", "torch_ms"):
        gains = [r[other] / r["ours_ms"] for r in rows if r.get(other)]
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        out[other[:-3]] = {"geomean": round(mean, 2), "worst": round(min(gains), 2), "pairs": len(gains)}
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few pairs, nothing written")
    parser.add_argument("--alone", action="store_true", help="one thread, by its processor time")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", UserWarning)  # torch's, that its CSR tensors are in beta
    if args.alone:
        compiler.CLOCK = time.thread_time
        torch.set_num_threads(1)
    load = os.getloadavg()[0]
    with torch.no_grad():
        turned = transposes(args.quick)
        rows = conversions(args.quick)
    machine = {"threads": torch.get_num_threads(), "clock": compiler.CLOCK.__name__, "torch": torch.__version__}
    machine |= {"scipy": scipy.__version__, "load_before": round(load, 1), "load_after": round(os.getloadavg()[0], 1)}
    print(json.dumps(summary(rows), indent=1))
    if not args.quick:
        found = {"machine": machine, "summary": summary(rows), "rows": rows, "transposes": turned}
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
