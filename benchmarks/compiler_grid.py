"""Is the compiler right? Random expressions over random formats, and the grid of cases that Scorch was measured on.

    python benchmarks/compiler_grid.py [--cases N] [--seed S] [--out FILE]

Every case is compared with ``torch.einsum`` (or, for what it can't write, the interpreter of index notation) on dense
float64 tensors. Sizes differ from index to index, 0 and 1 among them; operands and results are in random formats.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

import gossamer as gs
from gossamer.compiler import interpret, parse
from gossamer.compiler.language.notation import parse_groups
from gossamer.compiler.run.kernel import _KERNELS

RESULT = Path(__file__).parent / "results" / "compiler-grid.json"
SIZES = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
WIDE = (17, 20, 33, 66)
MATRICES = (
    gs.CSR(), gs.CSC(), gs.COO(), gs.DCSR(), gs.CSF(), gs.BSR((2, 3)), gs.ELL(), gs.Masked(),
    gs.Format("compressed", "dense"), gs.Format("compressed", "dense", order=(1, 0)), gs.Format("dense", "dense"),
    gs.formats.PackedCSR(), gs.formats.PackedCSR(7),
)  # fmt: skip
OTHERS = (
    "ij + ij -> ij", "ij - ij -> ij", "ij * ij + ij -> ij", "max(ij, ij) -> ij", "min(ij, ij) -> i",
    "relu(ij) * j -> ij", "max: ij -> i", "min: ij -> j", "mean: ij -> i", "max: ij,jk -> ik", "ijk + ijk -> ik",
    "ij + ji -> ij", "2 * ij - 0.5 * ij -> ji", "ij + j -> ij", "i + j -> ij", "ij, jk + ik -> ik",
    "abs(ij) * neg(ij) ->", "max: ijk -> j", "mean: ij,jk -> i", "ii + i -> i", "tanh(ij) -> ij",
    "ij * (ij + ij) -> ij", "max: ij ->", "ij + ij + ij -> ij", "sqrt(abs(ij)) -> j", "-ij -> ij",
    "(ij - ij) * (ij + ij) -> i",
)  # fmt: skip
#: What Scorch's grid has: its own cases, and those that it fails.
SCORCH = (
    "ij,j->i", "ik,kj->ij", "ik,jk->ij", "ki,kj->ij", "ij,ik,jk->ij", "ijk,k->ij", "ijk,kl->ijl", "ikl,lj,kj->ij",
    "bij,bjk->bik", "ij,jk,kl->il", "i,j->ij", "ij->ji", "ii->i", "ii->", "ij->", "ij->i", "ij->j", "ij,ij->ij",
    "ij,ij->", "ijk->kji", "...ij,jk->...ik", ",ij->ij",
)  # fmt: skip


@dataclass
class Case:
    """One expression on operands of given formats and sizes."""

    expression: str
    formats: list[gs.Format]
    sizes: dict[str, int]
    densities: list[float]
    out: gs.Format | None = None
    seed: int = 0
    strided: list[bool] = field(default_factory=list)

    def tensors(self) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The operands in their formats, and as dense tensors."""
        generator = torch.Generator().manual_seed(self.seed)
        sparse, dense = [], []
        for k, (group, format) in enumerate(zip(parse_groups(self.expression), self.formats, strict=True)):
            shape = [self.sizes[v] for v in "".join(group).replace("...", "ab")]
            keep = torch.rand(shape, generator=generator) < self.densities[k]
            x = torch.randn(shape, dtype=torch.float64, generator=generator) * keep
            dense.append(x)
            if isinstance(format, gs.Dense):
                moved = len(shape) > 1 and self.strided and self.strided[k]
                sparse.append(x.transpose(0, 1).contiguous().transpose(0, 1) if moved else x)
            else:
                sparse.append(gs.from_dense(x, format))
        return sparse, dense

    def wanted(self, dense: list[torch.Tensor]) -> torch.Tensor:
        """What the result must be."""
        if re.fullmatch(r"[a-z,. ]*->[a-z. ]*", self.expression):
            return torch.einsum(self.expression, *dense)
        return interpret(parse(self.expression, [d.dim() for d in dense]), dense)

    def wrong(self) -> str | None:
        """Compute it; return what is wrong with the result, or None."""
        sparse, dense = self.tensors()
        before = [t.values().clone() if isinstance(t, gs.SparseTensor) else t.clone() for t in sparse]
        got, want = gs.einsum(self.expression, *sparse, out=self.out), self.wanted(dense)
        if isinstance(got, gs.SparseTensor):
            got.structure.check(got.values())
        if self.out is not None and (got.format if isinstance(got, gs.SparseTensor) else gs.Dense()) != self.out:
            return f"the result is not in {self.out}"
        got = got.to_dense() if isinstance(got, gs.SparseTensor) else got
        if got.shape != want.shape:
            return f"shape {tuple(got.shape)}, should be {tuple(want.shape)}"
        if not torch.allclose(got, want, atol=1e-10):
            return "values"
        after = [t.values() if isinstance(t, gs.SparseTensor) else t for t in sparse]
        same = all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
        return None if same else "an operand was changed"


def any_format(rng: random.Random, ndim: int) -> gs.Format:
    """A random format for a tensor of so many dimensions."""
    if ndim == 0:
        return gs.Dense()
    order = rng.sample(range(ndim), ndim)
    stack = gs.Format(*(rng.choice(["dense", "compressed"]) for _ in range(ndim)), order=order)
    return rng.choice([gs.Dense(), gs.COO(), gs.CSF(), gs.Masked(), stack, stack, *(MATRICES if ndim == 2 else ())])


def draw(rng: random.Random) -> Case:
    """A random case: 1 to 3 operands of up to 4 dimensions; one in five from the list of sums, maxima and functions."""
    letters = "ijkl"[: rng.randint(1, 4)]
    if rng.random() < 0.2:
        expression = rng.choice(OTHERS)
        sizes = {v: rng.choice(SIZES[1:]) for v in "ijk"}  # a maximum of nothing has no value
    else:
        count = rng.randint(1, 3)
        groups = ["".join(rng.choice(letters) for _ in range(rng.randint(count == 1, 4))) for _ in range(count)]
        used = sorted({v for g in groups for v in g})
        rng.shuffle(used)
        expression = f"{','.join(groups)}->{''.join(used[: rng.randint(0, len(used))])}"
        sizes = {v: rng.choice(SIZES) for v in letters}
        if rng.random() < 0.2:
            sizes[rng.choice(letters)] = rng.choice(WIDE)
    groups = parse_groups(expression)
    output = parse(expression, [len(g) for g in groups]).output
    out = None if rng.random() < 0.4 else any_format(rng, len(output))
    formats = [any_format(rng, len(g)) for g in groups]
    densities = [rng.choice([0.0, 0.1, 0.3, 0.6, 1.0]) for _ in groups]
    strided = [rng.random() < 0.3 for _ in groups]
    return Case(expression, formats, sizes, densities, out, rng.randrange(2**31), strided)


def scorch_grid() -> Iterator[Case]:
    """Every expression of the grid with every format for its first operand, and a sparse and a dense second one."""
    sizes = {v: 3 + n for n, v in enumerate("iajbklcd")}
    for expression in SCORCH:
        groups = parse_groups(expression)
        wide = [len("".join(g).replace("...", "ab")) for g in groups]
        first = next(k for k, n in enumerate(wide) if n)
        choices = MATRICES[:-2] if wide[first] == 2 else (gs.COO(), gs.CSF(), gs.Masked())
        if wide[first] > 2:
            choices += (gs.Format("dense", *("compressed",) * (wide[first] - 1)),)
        for format in choices:
            for others in (gs.Dense(), gs.COO(), format):
                formats = [
                    format if k == first else others if n == wide[first] else gs.Dense() if others is format else others
                    for k, n in enumerate(wide)
                ]
                formats = [f if n else gs.Dense() for f, n in zip(formats, wide, strict=True)]
                yield Case(expression, formats, sizes, [0.4] * len(groups), seed=7)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    started, rng = time.perf_counter(), random.Random(args.seed)
    counts: dict[str, Counter[str]] = {}
    cases = {"grid": list(scorch_grid()), "random": [draw(rng) for _ in range(args.cases)]}
    for name, some in cases.items():
        counts[name] = Counter()
        for case in some:
            try:
                what = case.wrong() or "right"
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
            counts[name][what.split(":")[0]] += 1
            if what != "right":
                print(what, case)
        print(f"{name}: {len(some)} cases, {dict(counts[name])}", flush=True)
    result = {name: dict(c) for name, c in counts.items()}
    result |= {"kernels": len(_KERNELS), "seconds": round(time.perf_counter() - started, 1), "seed": args.seed}
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
