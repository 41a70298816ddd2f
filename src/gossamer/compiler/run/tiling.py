"""Tiles: loops cut so that what they read again is still near.

For results that have the entries of an operand and are sums along a contiguous index (SDDMM: ``ij,ik,jk->ij``), three
steps, each a step of the schedule that shows in ``kernel.loops``:

* **held**: the summed index has a number of turns that is known when the kernel is built, up to eight vectors, so that
  the row of ``Q`` stays in registers while the entries of a row are visited;
* **parts**: a longer index is cut into parts of that many, the outermost loop; the rows that are visited by column are
  copied so that one part of all of them is contiguous;
* **tiles**: where those are more than the L2 cache holds, the columns are cut into tiles that it does, and
  each thread goes through its rows once for each tile.

What bounds it (one core, Zen 4): an entry reads a row of ``K``, 4 bytes a multiplication. The L1 cache gives
223 GB/s, measured, which is 56 G multiplications a second; the second 118 GB/s, 30 G; random rows from the third about
12 G. With random columns a row of ``K`` is in the first level only by luck, so the second is the bound: the kernel
reaches 25 G there, 85 % of it. What was tried is in docs/explanation/compiler.md.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import Choice
from gossamer.compiler.emit.lanes import BYTES
from gossamer.compiler.emit.sums import MOST
from gossamer.compiler.run import runtime
from gossamer.compiler.run.views import C_TYPES, View
from gossamer.formats.levels import Arrays, Compressed, Dense, Level, Walk
from gossamer.native import BuildError

if TYPE_CHECKING:
    from gossamer.compiler.run.args import Arg

_SECOND = 3 << 18  # bytes of a tile: most of an L2 cache of 1 MB
_AGAIN = 64  # times that a row is read, from which on it is copied to lie with its neighbours
_FULL = 8  # entries in a row of a tile, from which on tiles pay
_NARROW = 256  # bytes of a row below which they don't: the third level gives short rows as fast as a tile is begun
_CHUNK = 1 << 19  # entries of the rows that a thread goes through tile by tile


@dataclass(frozen=True)
class Tile(Level):
    """A compressed level below (tile, row): ``tile`` says where a tile of a row begins, ``pos`` where a row does."""

    arrays: ClassVar[tuple[str, ...]] = ("pos", "tile", "crd")
    walk: ClassVar[Walk | None] = Walk("tile[p]", "tile[p + rows]", "crd[at]")

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"rows": arrays["pos"].numel() - 1}


class Tiling(NamedTuple):
    """What was decided: known turns of the summed index, its number of parts, the tiled view of the operand."""

    var: str
    across: str  # the index of columns
    turns: int
    parts: int = 1
    view: View | None = None
    packs: tuple[int, ...] = ()  # ordinary operands to copy part by part

    @property
    def part(self) -> str:
        """The loop over parts."""
        return f"{self.var}.part"

    @property
    def tile(self) -> str:
        """The loop over tiles of columns."""
        return f"{self.across}.tile"

    def cut(self, arg: Arg) -> Arg:
        """An ordinary operand with its summed index cut in two."""
        if self.parts == 1 or arg.structure is not None or self.var not in arg.vars:
            return arg
        d = arg.vars.index(self.var)
        return arg._replace(
            vars=(*arg.vars[:d], self.part, *arg.vars[d:]),
            shape=(*arg.shape[:d], self.parts, self.turns, *arg.shape[d + 1 :]),
            stride=(*arg.stride[:d], self.turns, *arg.stride[d:]),
        )

    @property
    def outside(self) -> tuple[str, ...]:
        """Loops over parts and tiles: outside all others."""
        return (*((self.part,) if self.parts > 1 else ()), *((self.tile,) if self.view else ()))


def tiling(
    choice: Choice,
    args: Sequence[Arg],
    like: int,
    view: View,
    sizes: dict[str, int],
    dtype: torch.dtype,
    tile: int | None = None,
) -> Tiling | None:
    """Decide how the loops of a result with the entries of operand ``like`` are cut; None: they are not.

    ``tile`` is the number of columns of a tile, if it was given by hand (0: there are none).
    """
    order = choice.order
    last = order[-1] if order else ""
    dense = [k for k, a in enumerate(args) if a.structure is None and last in a.vars]
    if not dense or choice.strip or any(last in a.vars for k, a in enumerate(args) if k not in dense):
        return None
    lanes = 64 // BYTES[C_TYPES[dtype]]
    vectors, rest = divmod(sizes[last], lanes)
    if rest or not vectors or any(args[k].vars.count(last) > 1 for k in dense):
        return None
    across = args[like].vars[view.parts[-1][0]]
    again = view.entries / max(sizes[across], 1)
    count = vectors if vectors <= MOST else max(g for g in range(1, MOST + 1) if vectors % g == 0)
    parts = vectors // count
    if parts > 1 and (choice.copies or count < MOST // 2 or again < _AGAIN):
        return None
    made = Tiling(last, across, count * lanes, parts)
    if any(args[k].stride[args[k].vars.index(last)] != 1 for k in dense if k not in choice.copies):
        return None
    if parts > 1:
        made = made._replace(packs=tuple(k for k in dense if across in args[k].vars))
    two = len(view.levels) == 2 and isinstance(view.levels[0], Dense) and type(view.levels[1]) is Compressed
    if two and order[:-1] == tuple(args[like].vars[d] for d, _ in view.parts):
        made = made._replace(view=_tiles(view, count * 64, sizes[order[0]], sizes[across], tile))
    return made


def chunks(threads: int, entries: int) -> int:
    """Into how many chunks the rows of a tiled loop are cut."""
    return max(4 * threads, entries // _CHUNK)


def _tiles(view: View, row: int, rows: int, columns: int, given: int | None) -> View | None:
    """The view in tiles of columns whose rows stay in the L2 cache; None if all do."""
    if given == 0 or (given is None and (row < _NARROW or row * columns <= 2 * _SECOND)):
        return None
    tiles = math.ceil(columns / given) if given else math.ceil(row * columns / _SECOND)
    if given is None and view.entries < _FULL * rows * tiles:
        return None
    (first, level), (pos, crd) = view.levels, (view.arrays["pos1"], view.arrays["crd1"])
    assert isinstance(level, Compressed)
    width = given or math.ceil(columns / tiles)
    try:
        arrays = {"pos2": pos, "tile2": _starts(pos, crd, tiles, width), "crd2": crd}
    except BuildError:  # no compiler: a plan can still be printed
        return None
    fans = (float(tiles), view.fans[0], view.fans[1] / tiles)
    return View(
        (Dense(), first, Tile()), arrays, (tiles, rows, columns), ((-1, 1), *view.parts), view.guards, fans, view.index
    )


def _starts(pos: Tensor, crd: Tensor, tiles: int, width: int) -> Tensor:
    """Where each tile of each row begins: tile by tile, and at the end where the rows end."""
    rows = pos.numel() - 1
    out = torch.empty(tiles + 1, rows, dtype=pos.dtype)
    pos, crd = pos.contiguous(), crd.contiguous()
    _helper(C_TYPES[pos.dtype], C_TYPES[crd.dtype])(rows, tiles, width, pos.data_ptr(), crd.data_ptr(), out.data_ptr())
    return out.view(-1)


_SOURCE = """\
void tile_starts(long rows, long tiles, long width, const {pos} *pos, const {crd} *crd, {pos} *out) {{
  for (long i = 0; i < rows; ++i) {{
    long p = pos[i];
    const long end = pos[i + 1];
    for (long t = 0; t < tiles; ++t) {{
      while (p < end && crd[p] < t * width) ++p;
      out[t * rows + i] = p;
    }}
    out[tiles * rows + i] = end;
  }}
}}
"""


@functools.lru_cache(maxsize=4)
def _helper(pos: str, crd: str):  # type: ignore[no-untyped-def]
    found = runtime.library(_SOURCE.format(pos=pos, crd=crd)).tile_starts
    found.argtypes, found.restype = [ctypes.c_long] * 3 + [ctypes.c_void_p] * 3, None
    return found
