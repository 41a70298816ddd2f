"""Other mappings of SDDMM and SpMM to the threads of a GPU, beside the one that the compiler chooses.

    python benchmarks/compiler_gpu_variants.py [--out FILE]

SDDMM: lanes that share a row, entries at once, blocks that should fit on a multiprocessor; "old": without a row in
registers. SpMM: entries of a piece, turns at once, blocks; "0,0,0": as the compiler chose when it was measured.
Results are compared with those of torch.sparse, and times are those of ``compiler_gpu.race``.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path

import compiler_gpu
import torch

import gossamer as gs
from gossamer.compiler.gpu import mapping as maps
from gossamer.compiler.run.cache import DESIGNS, PLANS

RESULT = Path(__file__).parent / "results" / "compiler-gpu-variants.json"
Variants = list[tuple[int, int, int]]
SAMPLED: dict[int, Variants] = {
    32: [(4, 4, 3), (4, 2, 3), (4, 2, 4), (4, 4, 2), (8, 4, 3)],
    64: [(4, 2, 3), (4, 4, 2), (8, 4, 3), (8, 2, 4), (8, 2, 3), (8, 4, 2)],
    128: [(8, 2, 3), (8, 2, 4), (8, 2, 2), (8, 4, 2), (16, 2, 4), (16, 4, 3), (8, 1, 4)],
}
PIECES: Variants = [(n, 2, 8) for n in (32, 48, 64, 96, 128, 256)] + [(64, 4, 6), (64, 3, 8), (64, 1, 8)]


def forget() -> None:
    """Let the next call be planned again."""
    PLANS.clear()
    DESIGNS.clear()


def sddmm(a: gs.SparseTensor, width: int) -> dict[str, float]:
    """Milliseconds of SDDMM by torch.sparse and by each mapping."""
    ones, n = gs.mask(a), a.shape[0]
    pattern, chosen = compiler_gpu.csr_of(ones), maps.rows
    q, k = torch.randn(2, n, width, device="cuda")

    def theirs() -> torch.Tensor:
        return torch.sparse.sampled_addmm(pattern, q, k.t(), beta=0.0)

    def ours() -> gs.SparseTensor:
        return gs.einsum("ij,id,jd->ij", ones, q, k)

    out = {"torch": compiler_gpu.race({"torch": theirs}, 5)["torch"]}
    for lanes, entries, blocks in SAMPLED[width]:
        made = maps.Mapping("sum", "d", lanes, 4, entries, "", blocks, width // (4 * lanes), True)
        maps.rows = lambda var, *args, made=made: made._replace(var=var)
        forget()
        compiler_gpu.check(ours().values(), theirs().values())
        out[f"{lanes},{entries},{blocks}"] = compiler_gpu.race({"ours": ours}, 9)["ours"]
    maps.rows = lambda *args: None
    forget()
    out["old"] = compiler_gpu.race({"ours": ours}, 5)["ours"]
    maps.rows = chosen
    forget()
    return out


def spmm(a: gs.SparseTensor, width: int) -> dict[str, float]:
    """Milliseconds of SpMM by torch.sparse, by the mapping that is chosen, and by others."""
    theirs, b, strip, piece = (
        compiler_gpu.csr_of(a),
        torch.randn(a.shape[1], width, device="cuda"),
        maps.strip,
        maps.piece,
    )

    def ours() -> torch.Tensor:
        return gs.einsum("ij,jk->ik", a, b)

    out = {"torch": compiler_gpu.race({"torch": lambda: theirs @ b}, 7)["torch"]}
    for entries, turns, blocks in [(0, 0, 0), *PIECES]:
        if entries:
            maps.piece = lambda *args, entries=entries: entries
            maps.strip = lambda *args, own=(turns, blocks): strip(*args)._replace(unroll=own[0], blocks=own[1])
        forget()
        compiler_gpu.check(ours(), theirs @ b)
        out[f"{entries},{turns},{blocks}"] = compiler_gpu.race({"ours": ours}, 9)["ours"]
    maps.strip, maps.piece = strip, piece
    forget()
    return out


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
    torch.manual_seed(0)
    gs.fallback("error")
    matrices, found = compiler_gpu.structures(1 << 18), {}
    for name, a in matrices.items():
        for width in SAMPLED:
            found[f"sddmm {name} {width}"] = sddmm(a, width)
    for name in ("power law", "blocks"):
        for width in (128, 32):
            found[f"spmm {name} {width}"] = spmm(matrices[name], width)
    for name, times in found.items():
        print(name, " ".join(f"{way}: {ms:.4f}" for way, ms in times.items()))
    args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "results": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
