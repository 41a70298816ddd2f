"""How long the sums of a plan are: long ones are added up in blocks, and those of varying length have masked ends."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from operator import ne, sub
from typing import NamedTuple

from torch import Tensor

from gossamer.compiler.language.algebra import needed
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Tree
from gossamer.compiler.run.views import View
from gossamer.formats import Structure

_SAMPLE = 32  # rows that are looked at
_FEW = 64  # rows below which their lengths don't matter
_LANES = 8  # terms that are added up together
LONG = 4096  # turns from which on a sum is made of sums of blocks


class Sums(NamedTuple):
    """The sums of a statement: the loops of each operand's levels, and the indices that are summed with their sizes."""

    statement: Statement
    loops: tuple[tuple[str, ...] | None, ...]
    sizes: dict[str, int]

    def long(self, views: Sequence[View | None]) -> bool:
        """May one have so many terms that it must be made of blocks?"""
        return math.prod(self.sizes.values()) > LONG and self.terms(views) > LONG

    def terms(self, views: Sequence[View | None]) -> int:
        """Return how many terms a sum has, at most."""
        if self.statement.reduce not in ("sum", "mean") or not self.sizes:
            return 0
        walks = [None if v is None or w is None else (v, w) for v, w in zip(views, self.loops, strict=True)]
        return longest(self.statement.tree, walks, self.sizes)


def longest(tree: Tree, walks: Sequence[tuple[View, Sequence[str]] | None], sizes: Mapping[str, int]) -> int:
    """Return how many terms a sum over these indices has, at most. ``walks``: each operand's view, and its loops."""
    stacks = frozenset(k for k, walk in enumerate(walks) if walk is not None)
    factors, total = _factors(tree, stacks), 1
    for v, size in sizes.items():
        widths = {}
        for k in stacks:
            view, loops = walks[k]  # type: ignore[misc]
            if size > 1 and v in loops:
                widths[k] = widest(view, list(loops).index(v))
        if factors & widths.keys():
            size = min(size, *(widths[k] for k in factors & widths.keys()))
        total *= max(size, 1)
    return total


@lru_cache(maxsize=1024)
def _factors(tree: Tree, stacks: frozenset[int]) -> frozenset[int]:
    """Return the operands without whose entries the tree is zero."""
    points = needed(tree, stacks)
    return frozenset.intersection(*points) if points else frozenset()


def widest(view: View, n: int) -> int:
    """Return how many positions one parent of a level has, at most: counted only where it may be many.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.compiler.run.views import native
    >>> a = gs.from_dense(torch.tensor([[1., 1., 0.], [0., 0., 1.]]), gs.CSR())
    >>> widest(native(a.structure), 0), widest(native(a.structure), 1)
    (2, 3)
    """
    level, size = view.levels[n], view.sizes[n]
    if view.entries <= LONG or size <= LONG or level.full:
        return min(size, max(view.entries, 1))
    pos = view.arrays.get(f"pos{n}")
    counted = pos is not None and level.walk is not None and level.walk.begin == "pos[p]" and pos.numel() > 1
    return min(size, int(pos.diff().max())) if pos is not None and counted else size


def uneven(structure: Structure) -> bool:
    """Do the rows of a structure differ in length (:func:`ragged`)?

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> uneven(gs.from_dense(torch.eye(100), gs.CSR()).structure)
    False
    """
    pos = structure.arrays.get(f"pos{len(structure.format.stack(len(structure.shape))) - 1}")
    return pos is not None and ragged(pos)


def ragged(pos: Tensor) -> bool:
    """Do rows differ in how many of their entries fill no vector, so often that no branch can be predicted?

    A few rows in the middle are looked at, in Python: five operators of torch take twice as long, and a new pattern
    should cost little.

    Examples
    --------
    >>> import torch
    >>> ragged(torch.arange(0, 1000, 10)), ragged(torch.randint(0, 20, (1000,)).cumsum(0))
    (False, True)
    """
    rows = pos.numel() - 1
    if rows < _FEW or pos.device.type != "cpu":
        return False
    begins = pos.narrow(0, (rows - _SAMPLE) // 2, _SAMPLE + 1).tolist()
    rest = [*map((_LANES - 1).__and__, map(sub, begins[1:], begins))]
    return 4 * sum(map(ne, rest, rest[1:])) > _SAMPLE
