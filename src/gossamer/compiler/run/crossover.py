"""Dense when dense wins: from which density on a product is left to torch's dense kernels."""

from __future__ import annotations

import contextlib
import math

from gossamer.compiler.language.tree import Op, Tree
from gossamer.compiler.run.calls import AnyPlan

# A dense product does about this much more a moment than a sparse one: measured by benchmarks/compiler.py.
_MEASURED = 0.5
_density: float | None = _MEASURED


class dense_from(contextlib.AbstractContextManager[None]):  # noqa: N801 - used like a function
    """Set from which density on torch computes a product of two operands in :func:`gossamer.einsum`, as dense.

    The density is the number of iterations of the sparse loops divided by that of dense loops. ``None`` means never.
    As a function it sets the density for the process; as a context manager it restores the old one at the end.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.sparsify(torch.randn(64, 64), "50%", format=gs.CSR())
    >>> with gs.dense_from(None):
    ...     out = gs.einsum("ik,kj->ij", a, torch.randn(64, 8))  # by a sparse kernel, although the density is 50 %
    """

    def __init__(self, density: float | None) -> None:
        global _density
        if density is not None and (not isinstance(density, (int, float)) or not density >= 0):
            raise ValueError(f"density={density!r} must be a number from 0, or None for never")
        self._before, _density = _density, density

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        global _density
        _density = self._before


def setting() -> float | None:
    """Return the density from which torch's dense kernels are used."""
    return _density


def dense_wins(plan: AnyPlan) -> bool:
    """Would torch's dense kernel be faster than the plan?"""
    s = plan.statement
    if _density is None or plan.out != "dense" or plan.like or len(s.inputs) != 2 or s.reduce != "sum":
        return False
    shared = set(s.inputs[0]) & set(s.inputs[1]) - set(s.output)
    if any("." in v or v.startswith("_") for group in s.inputs for v in group):
        return False  # dimensions of '...', or that broadcast
    if not shared or not _product(s.tree) or not all(set(s.output) - set(group) for group in s.inputs):
        return False  # not a product of matrices
    every = math.prod(plan.sizes[v] for v in {v for group in s.inputs for v in group})
    return every > 0 and plan.turns >= _density * every


def _product(tree: Tree) -> bool:
    return isinstance(tree, Op) and tree.name == "*" and not any(isinstance(a, Op) for a in tree.args)
