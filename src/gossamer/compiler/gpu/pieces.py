"""The entries of a sparse operand, sorted by some of its dimensions and cut into pieces of about equal length.

Entries are sorted by their *outer* dimensions, those that the result has, then by the *inner* ones. Entries with the
same outer coordinates are a group. A group of more than ``length`` entries is cut into pieces; the sum of each has a
slot, and the slots of a group are the entries of a new, shorter group: that is how sums of pieces are added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.language.program import LevelUse, Stack, Walk
from gossamer.formats import Structure
from gossamer.formats.keys import ascending, ravel, unravel

INT32 = 2**31 - 1
C_TYPES = {torch.int32: "int", torch.int64: "long long"}


class Groups(NamedTuple):
    """Groups of neighbouring entries: their outer coordinates, a tensor for each dimension, and their lengths."""

    coords: tuple[Tensor, ...]
    counts: Tensor
    every: bool = False  # is there a group for every coordinate, so that the result is written everywhere?


class Sorted(NamedTuple):
    """Entries in the order of their groups: inner coordinates, and where the value of each is (None: in order)."""

    groups: Groups
    inner: tuple[Tensor, ...]
    where: Tensor | None


class Cut(NamedTuple):
    """Groups cut into pieces."""

    coords: tuple[Tensor, ...]  # of each piece
    starts: Tensor  # the first entry of each piece; at the end the number of entries, unless there are ``ends``
    slot: Tensor | None  # of each piece, where its sum goes; -1: to the result. None: all go to the result
    rest: Groups | None  # the slots, as entries of the groups that were cut
    every: bool
    ends: Tensor | None = None  # where each piece ends, if that is not where the next begins

    @property
    def number(self) -> int:
        """How many pieces there are."""
        return self.starts.numel() - (self.ends is None)

    @property
    def slots(self) -> int:
        """How many sums are added up later."""
        return 0 if self.rest is None else int(self.rest.counts.sum())


def in_order(structure: Structure, outer: tuple[int, ...]) -> Sorted:
    """Return the entries of a structure sorted by its outer dimensions; made once, and kept with it.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 1., 1.], [0., 1., 0.]]), gs.CSR())
    >>> by_column = in_order(a.structure, (1,))
    >>> by_column.groups.counts, by_column.inner[0], by_column.where
    (tensor([0, 2, 1]), tensor([0, 1, 0], dtype=torch.int32), tensor([0, 2, 1], dtype=torch.int32))
    """
    found: Sorted = structure.cached(("gpu", outer), lambda: _sort(structure, outer))
    return found


def _sort(structure: Structure, outer: tuple[int, ...]) -> Sorted:
    shape = structure.shape
    order = (*outer, *(d for d in range(len(shape)) if d not in outer))
    keys, where = structure.entries()
    coords = unravel(keys, shape)
    coords = [coords[d] for d in order]
    if len(outer) == len(shape):  # each entry is a group of its own, and stays where it is
        return Sorted(
            Groups(tuple(map(_small, coords)), torch.ones_like(keys, dtype=torch.int32)), (), _small_or_none(where)
        )
    number = ravel(coords, [shape[d] for d in order])
    if not ascending(number):
        turn = torch.argsort(number)
        coords = [c[turn] for c in coords]
        where = turn if where is None else where[turn]
    own, inner = coords[: len(outer)], coords[len(outer) :]
    return Sorted(_groups(own, [shape[d] for d in outer], keys), tuple(map(_small, inner)), _small_or_none(where))


def _groups(own: list[Tensor], sizes: list[int], keys: Tensor) -> Groups:
    if not own:
        return Groups((), torch.tensor([keys.numel()], device=keys.device), True)
    if len(own) == 1:
        counts = torch.bincount(own[0], minlength=sizes[0])
        return Groups((_small(torch.arange(sizes[0], device=keys.device)),), counts, True)
    number, counts = torch.unique_consecutive(ravel(own, sizes), return_counts=True)
    return Groups(tuple(map(_small, unravel(number, sizes))), counts)


def _small(index: Tensor) -> Tensor:
    """Indices in 32 bits, if they fit: half the bytes."""
    return index.int() if not index.numel() or int(index.max()) <= INT32 else index


def _small_or_none(index: Tensor | None) -> Tensor | None:
    return None if index is None else _small(index)


def cut(groups: Groups, length: int) -> Cut:
    """Cut each group into pieces of up to ``length`` entries; a group without entries is one piece.

    If a group is cut, pieces are sorted by their length, the longest first: pieces that run side by side, in a warp or
    in a block, then end at about the same time, and the last ones to end are short.

    Examples
    --------
    >>> import torch
    >>> made = cut(Groups((torch.arange(3),), torch.tensor([1, 5, 0]), True), 2)
    >>> made.coords[0].tolist(), made.starts.tolist(), made.ends.tolist(), made.slot.tolist()
    ([1, 1, 0, 1, 2], [1, 3, 0, 5, 6], [3, 5, 1, 6, 6], [0, 1, -1, 2, -1])
    >>> made.rest
    Groups(coords=(tensor([1]),), counts=tensor([3]), every=False)
    """
    counts = groups.counts.long()
    first = counts.cumsum(0) - counts
    pieces = torch.clamp(-(-counts // length), min=1)
    total = int(pieces.sum()) if counts.numel() else 0
    if total == counts.numel():
        return Cut(groups.coords, _small(_ended(first, counts)), None, None, groups.every)
    each = -(-counts // pieces)
    group = torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), pieces, output_size=total)
    within = torch.arange(total, device=counts.device) - (pieces.cumsum(0) - pieces)[group]
    starts = _ended(first[group] + within * each[group], counts)
    several = pieces > 1
    slot = torch.where(several[group], several[group].cumsum(0) - 1, -1)
    rest = Groups(tuple(c[several] for c in groups.coords), pieces[several])
    order = torch.argsort(starts.diff(), descending=True, stable=True)
    coords = tuple(c[group[order]] for c in groups.coords)
    return Cut(coords, _small(starts[order]), _small(slot[order]), rest, groups.every, _small(starts[1:][order]))


def _ended(starts: Tensor, counts: Tensor) -> Tensor:
    return torch.cat([starts, counts.sum().reshape(1)])


class Walked(NamedTuple):
    """An operand as loops walk it: its levels, and the arrays and integers of each by name and level."""

    stack: Stack
    arrays: dict[str, Tensor]
    numbers: dict[str, int]


def walked(pieces: Cut, inner: Sequence[Tensor | None], where: Tensor | None, loops: Sequence[str]) -> Walked:
    """Return pieces and their entries as a stack of levels.

    Parameters
    ----------
    pieces
        What the outermost loop runs over.
    inner
        Coordinates of the entries, one tensor a dimension; None: its coordinate is the number of the entry.
    where
        Where the value of each entry is; None: in order.
    loops
        Variables of the levels: those of the pieces, or one for their number if they have no coordinates; then those of
        the entries.
    """
    heads: list[Tensor | None] = list(pieces.coords) or [None]
    uses, arrays = [], {}  # type: list[LevelUse], dict[str, Tensor]
    for n, (crd, var) in enumerate(zip((*heads, *inner), loops, strict=True)):
        own = {} if crd is None else {"crd": crd}
        begin, end = ("0", "count") if n == 0 else ("p", "p + 1")
        if n == 0 and pieces.slot is not None:
            own["slot"] = pieces.slot
        if inner and n == len(heads):
            own["pos"], begin, end = pieces.starts, "pos[p]", "pos[p + 1]"
            if pieces.ends is not None:
                own["end"], end = pieces.ends, "end[p]"
        at = "q"
        if n == len(heads) + len(inner) - 1 and where is not None:
            own["where"], at = where, "where[q]"
        walk = Walk(begin, end, "q" if crd is None else "crd[q]", at, ordered=False)
        types = tuple((name, C_TYPES[array.dtype]) for name, array in own.items())
        uses.append(LevelUse(walk, var, n, types, ("count",) if n == 0 else ()))
        arrays |= {f"{name}{n}": array for name, array in own.items()}
    return Walked(Stack(tuple(uses)), arrays, {"count0": pieces.number})
