"""How a structure looks to the compiler: a stack of levels that it can walk, and where each entry's value is.

Most formats are walked as they are stored. One that can't be (COO's repeated rows, a level kind without a walk, an
operand that the loops need in another order) is repacked into compressed levels, once: views are kept with the
structure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import LevelUse, Stack, Walk
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Target
from gossamer.compiler.convert.reading import parts_of
from gossamer.compiler.convert.restack import enough, restack
from gossamer.formats import Format, Structure
from gossamer.formats.keys import ascending, ravel, unravel
from gossamer.formats.levels import Compressed, Dense, Level
from gossamer.formats.structure import pack

C_TYPES = {
    torch.int32: "int", torch.int64: "long", torch.uint8: "unsigned char", torch.bool: "unsigned char",
    torch.float32: "float", torch.float64: "double",
}  # fmt: skip


_ROWS = 1024  # rows that a matrix has at least, before empty ones are left out


class View(NamedTuple):
    """A stack of levels over a structure's entries."""

    levels: tuple[Level, ...]
    arrays: dict[str, Tensor]
    sizes: tuple[int, ...]  # of the levels
    parts: tuple[tuple[int, int], ...]  # of each level, the dimension it belongs to (-1: tiles) and its weight there
    guards: frozenset[int]  # dimensions that padding may leave
    fans: tuple[float, ...]  # average number of positions below one of the level above
    index: Tensor | None  # type: ignore[assignment]  # place of entry i of the view in the values (None: i)

    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return sum(a.nbytes for a in (*self.arrays.values(), self.index) if a is not None)

    @property
    def entries(self) -> int:
        """How many entries it has, padding included."""
        return round(math.prod(self.fans))

    @property
    def cut(self) -> bool:
        """Does a dimension have more than one level (blocks)?"""
        return len({d for d, _ in self.parts}) < len(self.parts)

    def stack(self, vars: Sequence[str]) -> Stack:
        """Return the stack, with these loop variables."""
        uses = []
        for n, (level, var) in enumerate(zip(self.levels, vars, strict=True)):
            assert level.walk is not None
            names = () if level.full else level.arrays
            arrays = tuple((name, C_TYPES[self.arrays[f"{name}{n}"].dtype]) for name in names)
            uses.append(LevelUse(Walk(*level.walk), var, n, arrays, tuple(self.own_numbers(n))))
        return Stack(tuple(uses))

    def own_numbers(self, n: int) -> dict[str, int]:
        """Integers of one level."""
        level = self.levels[n]
        return level.numbers({name: self.arrays[f"{name}{n}"] for name in level.arrays})


def native(structure: Structure) -> View | None:
    """Return the structure as it is stored; None if a level can't be walked, or dimensions are flattened."""
    found: View | None = structure.cached("view", lambda: _native(structure))
    return found


def _native(structure: Structure) -> View | None:
    laid = _laid_out(structure.format, tuple(structure.shape))
    if laid is None:
        return None
    stack, sizes, parts, guards = laid
    fans, parents = [], 1
    for level, arrays, _, size in structure.levels():
        positions = level.positions(arrays, parents, size)
        fans.append(positions / max(parents, 1))
        parents = positions
    return View(stack, structure.arrays, sizes, parts, guards, tuple(fans), None)


class _Laid(NamedTuple):
    stack: tuple[Level, ...]
    sizes: tuple[int, ...]
    parts: tuple[tuple[int, int], ...]
    guards: frozenset[int]


@lru_cache(maxsize=1024)
def _laid_out(format: Format, shape: tuple[int, ...]) -> _Laid | None:
    """What a view of a structure as stored has in common with others of its format and shape."""
    stack = format.stack(len(shape))
    if format.groups(len(shape)) != len(shape) or any(not _walkable(level) for level in stack):
        return None
    parts = parts_of(format, shape, len(stack))
    if parts is None:
        return None
    sizes = format.level_sizes(shape)
    spread = [0] * len(shape)
    for (d, weight), size in zip(parts, sizes, strict=True):
        spread[d] += weight * max(size - 1, 0)
    guards = frozenset(d for d, size in enumerate(shape) if spread[d] >= max(size, 1))
    return _Laid(tuple(stack), tuple(sizes), parts, guards)


def _walkable(level: Level) -> bool:
    return level.walk is not None and not (isinstance(level, Compressed) and not level.unique)


def repacked(structure: Structure, order: tuple[int, ...]) -> View:
    """Return the entries sorted by their dimensions in this order, in compressed levels (the first may be dense)."""
    found: View = structure.cached(("view", order), lambda: _repacked(structure, order))
    return found


def without_empty_rows(structure: Structure) -> View | None:
    """Return a view that walks the rows with entries alone; None if a large part of the rows has some.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.nn.functional.pad(torch.eye(3), (0, 0, 0, 5000)), gs.CSR())
    >>> without_empty_rows(a.structure).arrays["crd0"].tolist()
    [0, 1, 2]
    """
    view = native(structure)
    if view is None or [type(level) for level in view.levels] != [Dense, Compressed] or view.index is not None:
        return None
    if not view.levels[1].unique or 4 * view.arrays["crd1"].numel() > view.sizes[0] - _ROWS:  # type: ignore[attr-defined]
        return None
    found: View = structure.cached("filled rows", lambda: _without_empty_rows(view))
    return found


def _without_empty_rows(view: View) -> View:
    pos = view.arrays["pos1"]
    rows = (pos[1:] != pos[:-1]).nonzero().view(-1)
    arrays = {
        "pos0": torch.tensor([0, rows.numel()], dtype=pos.dtype),
        "crd0": rows.to(pos.dtype),
        "pos1": torch.cat((pos[rows], pos[-1:])),
        "crd1": view.arrays["crd1"],
    }
    fans = (float(rows.numel()), view.entries / max(rows.numel(), 1))
    return view._replace(levels=(Compressed(), Compressed()), arrays=arrays, fans=fans)


def stack_for(order: tuple[int, ...], shape: Sequence[int], nnz: int) -> tuple[Level, ...]:
    """Return the levels into which entries are repacked."""
    first = shape[order[0]]
    dense = len(order) > 1 and first <= 4 * nnz + 4096
    return (Dense() if dense else Compressed(), *(Compressed(),) * (len(order) - 1))


def fans_for(order: tuple[int, ...], shape: Sequence[int], nnz: int) -> tuple[float, ...]:
    """Guess what :func:`repacked` would find, as if entries were spread evenly."""
    fans, before, space = [], 1.0, 1.0
    for n, level in enumerate(stack_for(order, shape, nnz)):
        space *= shape[order[n]]
        now = space if level.full else min(space, float(nnz))
        fans.append(now / max(before, 1.0))
        before = now
    return tuple(fans)


def _repacked(structure: Structure, order: tuple[int, ...]) -> View:
    shape = structure.shape
    sizes = tuple(shape[d] for d in order)
    stack = stack_for(order, shape, structure.nnz)
    made = None
    if enough(structure.nnz) and structure.device.type == "cpu":
        target = Target(stack, sizes, tuple(Cut(d) for d in order), tuple(shape))
        made = restack(structure, target)
    arrays, index = _sorted(structure, order, stack, sizes) if made is None else (made.arrays, made.where)
    fans, parents = [], 1
    for n, (level, size) in enumerate(zip(stack, sizes, strict=True)):
        positions = level.positions({name: arrays[f"{name}{n}"] for name in level.arrays}, parents, size)
        fans.append(positions / max(parents, 1))
        parents = positions
    return View(stack, arrays, sizes, tuple((d, 1) for d in order), frozenset(), tuple(fans), index)


def _sorted(
    structure: Structure, order: tuple[int, ...], stack: tuple[Level, ...], sizes: tuple[int, ...]
) -> tuple[dict[str, Tensor], Tensor | None]:
    """The same in torch: arrays, and the place of each entry in the values."""
    keys, index = structure.entries()
    coords = unravel(keys, structure.shape)
    coords = [coords[d] for d in order]
    number = ravel(coords, sizes)
    if not ascending(number):
        turn = torch.argsort(number)
        number, coords = number[turn], [c[turn] for c in coords]
        index = turn if index is None else index[turn]
    return pack(stack, coords, number, sizes)[0], index
