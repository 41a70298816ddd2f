"""What a call of gs.einsum costs, one thread: microseconds of small products, of their gradients, and of their rivals.

    python benchmarks/compiler_calls.py [--quick] [--out FILE]

The matrices are small, so that the call is most of the time. Calls take turns, by the processor time of the process,
and the fastest turn of each counts.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import gossamer as gs

RESULT = Path(__file__).parent / "results" / "compiler-calls.json"
Call = Callable[[], Any]
Times = dict[str, float]


def race(calls: dict[str, Call], quick: bool) -> Times:
    """Microseconds of each call."""
    turns, number = (2, 20) if quick else (15, 300)
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(turns):
        for name, call in calls.items():
            call()
            before = time.process_time()
            for _ in range(number):
                call()
            best[name] = min(best[name], 1e6 * (time.process_time() - before) / number)
    return {name: round(best[name], 1) for name in calls}


class Nothing(torch.autograd.Function):
    """What autograd itself costs: a function of two operands that computes nothing."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, x)
        return x.new_empty(400, 8)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors))


def small(quick: bool) -> dict[str, Times]:
    """Warm calls without gradients."""
    a = gs.sparsify(torch.randn(40, 40), "80%", format=gs.CSR())
    b, x, y = gs.SparseTensor(torch.randn(a.nnz), a.structure), torch.randn(40), torch.randn(40, 8)
    theirs = a.to_torch()
    values, others = a.values().numpy(), b.values().numpy()
    return {
        "SpMV, 320 entries": race(
            {"gossamer": lambda: gs.einsum("ij,j->i", a, x), "torch.sparse": lambda: torch.mv(theirs, x)}, quick
        ),
        "SpMM 8, 320 entries": race(
            {"gossamer": lambda: gs.einsum("ij,jk->ik", a, y), "torch.sparse": lambda: torch.mm(theirs, y)}, quick
        ),
        "ij,ij->, 320 entries": race(
            {"gossamer": lambda: gs.einsum("ij,ij->", a, b), "numpy dot": lambda: values.dot(others)}, quick
        ),
    }


def patterns(quick: bool) -> dict[str, Times]:
    """Calls on several patterns, and on one that was not seen before; making a tensor of it counts in all of them."""
    a, *more = [gs.sparsify(torch.randn(1000, 1000), "99.5%", format=gs.CSR()) for _ in range(4)]
    b, *others = more
    theirs, another, x = a.to_scipy(), b.to_scipy(), torch.randn(1000)

    def new(t: gs.SparseTensor) -> gs.SparseTensor:
        s = t.structure
        return gs.SparseTensor(t.values(), gs.formats.Structure(s.format, s.shape, s.arrays, s.device))

    def in_turn() -> None:
        for one in (a, b, *others):
            gs.einsum("ij,j->i", one, x)

    return {
        "SpMV, 5,000 entries": race(
            {
                "new pattern": lambda: gs.einsum("ij,j->i", new(a), x),
                "known pattern, new tensor": lambda: gs.einsum("ij,j->i", gs.SparseTensor(a.values(), a.structure), x),
                "known pattern": lambda: gs.einsum("ij,j->i", a, x),
                "four patterns in turn": in_turn,
                "making the tensor": lambda: new(a),
                "scipy": lambda: theirs @ x.numpy(),
            },
            quick,
        ),
        "ij + ij -> ij, 5,000 entries": race(
            {
                "new patterns": lambda: gs.einsum("ij + ij -> ij", new(a), new(b)),
                "known patterns": lambda: gs.einsum("ij + ij -> ij", a, b),
                "scipy": lambda: theirs + another,
            },
            quick,
        ),
    }


def gradients(quick: bool) -> dict[str, Times]:
    """SpMM of 8,000 entries with 8 columns, forward and backward."""
    a = gs.sparsify(torch.randn(400, 400), "95%", format=gs.CSR())
    x, d = torch.randn(400, 8, requires_grad=True), torch.randn(400, 8)
    w, ones, values = torch.nn.Parameter(a), gs.mask(a), a.values().clone().requires_grad_()
    theirs, y = a.to_torch(), x.detach()
    plain = torch.no_grad()(
        lambda: (gs.einsum("ij,jk->ik", a, y), gs.einsum("ij,ik->jk", a, d), gs.einsum("ij,ik,jk->ij", ones, d, y))
    )
    two = torch.no_grad()(lambda: (gs.einsum("ij,jk->ik", a, y), gs.einsum("ij,ik->jk", a, d)))

    def step(layer: Call, leaves: list[torch.Tensor]) -> Call:
        return lambda: torch.autograd.grad(layer(), leaves, d)

    return {
        "gradient of the dense operand": race(
            {
                "gossamer": step(lambda: gs.einsum("ij,jk->ik", a, x), [x]),
                "the products alone": two,
                "torch.sparse": step(lambda: torch.sparse.mm(theirs, x), [x]),
                "autograd alone": step(lambda: Nothing.apply(values, x), [x]),
            },
            quick,
        ),
        "gradients of both": race(
            {
                "gossamer": step(lambda: gs.einsum("ij,jk->ik", w, x), [w, x]),
                "the products alone": plain,
                "autograd alone": step(lambda: Nothing.apply(values, x), [values, x]),
            },
            quick,
        ),
    }


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few turns, nothing written")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with gs.dense_from(None):
        found = small(args.quick) | patterns(args.quick) | gradients(args.quick)
    for name, times in found.items():
        print(f"{name:30} " + ", ".join(f"{way} {us:.1f} us" for way, us in times.items()))
    if not args.quick:
        result = {"torch": torch.__version__, "threads": 1, "microseconds": found}
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
