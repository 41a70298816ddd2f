"""The level of packed V:N:M: pairs of values and 2-bit metadata, in the order in which sparse tensor cores read them.

A parent is a tile of 64 rows. Its columns come in groups of m, sixteen groups a step; in a group each row has two
places, whose columns are two of the four that v rows share. With row = 64 r + 16 strip + 8 high + low, and a group =
16 step + 8 half + 4 upper + lane, the place of slot 0 or 1 is the row-major number of

    (step, r, strip, half, low, lane, upper, high, slot)

which is the register fragment of ``mma.sp.m16n8k32`` and of ``wgmma.sp``: eight places a thread and k32 step; all rows
of a step lie together, so that a kernel fetches many tiles of it by one bulk copy. A word of
``meta`` is at (step, r, strip, low, half, upper) and holds four bits for each group: the index of slot 0 among the
shared columns, then that of slot 1; the low half for ``high`` = 0, the high half for 1. ``cols`` holds, for each v rows
and each group, the four shared columns, ascending.

For values of 8 bits a register has twice as many, and a step twice as many groups. With a group = 32 step + 16 half +
8 upper + 2 lane + odd, the places are in the order of

    (step, r, strip, half, low, lane, upper, high, odd, slot)

which is the fragment of the instructions with k64; a word of ``meta`` is at (step, r, strip, low, upper, high, half)
and has the eight groups of (lane, odd).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gossamer.formats.levels.base import BYTE, Arrays, Level, Packed, Unpacked, rank, require

TILE = 64  # rows: what one wgmma takes


def step_of(bits: int) -> int:
    """Return the groups of a step: 64 shared columns of 16 bits, or 128 of 8.

    Examples
    --------
    >>> step_of(16), step_of(8)
    (16, 32)
    """
    return 256 // bits


@dataclass(frozen=True)
class Pairs(Level):
    """Two places in each group of m columns for each row; v rows share their four columns.

    The coordinate below a tile is ``row * width + column``, for its 64 rows and ``width`` columns. A row with fewer
    than two entries in a group has its other places at shared columns that are free, and zeros there.

    Examples
    --------
    >>> import torch
    >>> level = Pairs("all", 8)
    >>> arrays, position, n = level.pack(torch.tensor([0, 0]), torch.tensor([2, 5]), 1, 64 * 16 * 8)
    >>> arrays["cols"][0, 0].tolist(), position.tolist(), n
    ([0, 1, 2, 5], [0, 1], 2048)
    >>> bin(arrays["meta"][0] & 15)  # slot 0 is index 2, slot 1 is index 3
    '0b1110'
    """

    v: int | Literal["all"] = "all"
    m: int = 4
    bits: int = 16
    arrays: ClassVar[tuple[str, ...]] = ("cols", "meta")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"cols": BYTE, "meta": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"meta": "parents * (size / m) / 8"}

    @property
    def ordered(self) -> bool:
        return False

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"m": self.m}

    def check_sizes(self, parents: int, size: int) -> None:
        step = TILE * step_of(self.bits) * self.m
        require(size % step == 0, f"Pairs takes coordinates in steps of {step}, not {size}")

    def blocks(self, parents: int) -> int:
        """How many times v rows there are in these tiles."""
        return min(parents, 1) if self.v == "all" else -(-parents * TILE // self.v)

    def _block(self, row: Tensor) -> Tensor:
        return torch.zeros_like(row) if self.v == "all" else row // self.v

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        width = size // TILE
        row, col = parent * TILE + coord // max(width, 1), coord % max(width, 1)
        groups = width // self.m
        group, inside = col // self.m, col % self.m
        line = row * groups + group
        nth = rank(line, inside)
        most = int(nth.max()) + 1 if nth.numel() else 0
        require(most <= 2, f"a row keeps {most} of {self.m} columns, at most 2 of each {self.m} fit")
        cols = self._share(row, group, inside, self.blocks(parents), groups)
        if self.m == 4:
            index = inside
        else:
            index = (cols[self._block(row), group] < inside[:, None]).sum(1)
        slots, slot = _slots(line, nth, index, parents * TILE * groups)
        place = _place(row, group, parents, self.bits) + slot
        return {"cols": cols, "meta": _meta(slots, parents, groups, self.bits)}, place, parents * TILE * groups * 2

    def _share(self, row: Tensor, group: Tensor, inside: Tensor, blocks: int, groups: int) -> Tensor:
        """The four columns that each v rows share in each group: those in use, then the first that are free."""
        if self.m == 4:
            return torch.empty(0, dtype=torch.uint8, device=row.device)
        used = torch.zeros(blocks * groups, self.m, dtype=torch.bool, device=row.device)
        used[self._block(row) * groups + group, inside] = True
        most = int(used.sum(1).max()) if used.numel() else 0
        rows = "all rows" if self.v == "all" else f"{self.v} rows"
        require(most <= 4, f"{rows} keep {most} different columns of a group of {self.m}, at most 4 fit")
        # of columns that are alike the first: an 8-bit key for each, unique in its group
        free = torch.where(used, 0, 256) + torch.arange(self.m, dtype=torch.int16, device=row.device)
        first = free.topk(4, dim=1, largest=False).values % 256
        return first.sort(1).values.to(torch.uint8).view(blocks, groups, 4)

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        width = size // TILE
        groups = width // self.m
        row, group = _rows_and_groups(parents, groups, self.bits, device)
        index = _indices(arrays["meta"], parents, groups, self.bits).reshape(-1).long()
        row, group = (at.expand(*at.shape[:-1], 2).reshape(-1) for at in (row, group))
        inside = index
        if self.m != 4:
            inside = arrays["cols"].reshape(-1)[(self._block(row) * groups + group) * 4 + index].long()
        return row // TILE, row % TILE * width + group * self.m + inside, None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        cols, meta = arrays["cols"], arrays["meta"]
        groups = size // TILE // self.m
        low = torch.stack([meta >> shift for shift in range(0, 32, 4)])
        require(bool(((low & 3) < (low >> 2 & 3)).all()), "meta has a pair of indices that does not ascend")
        shape = (0,) if self.m == 4 else (self.blocks(parents), groups, 4)
        require(tuple(cols.shape) == shape, f"cols is {tuple(cols.shape)}, must be {shape}")
        if cols.numel():
            require(int(cols.max()) < self.m, f"cols has a column outside 0 .. {self.m - 1}")
            require(bool((cols[..., 1:] > cols[..., :-1]).all()), "cols does not ascend within a group")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return size // self.m * parents * 2


def _slots(line: Tensor, rank: Tensor, index: Tensor, lines: int) -> tuple[Tensor, Tensor]:
    """Indices of the two slots of every row and group, and the slot of each entry."""
    count = torch.zeros(lines, dtype=torch.int8, device=line.device)
    count.index_add_(0, line, torch.ones_like(line, dtype=torch.int8))
    alone = count[line] == 1
    slot = torch.where(alone, (index > 0).long(), rank)  # beside an entry alone the first free index, 0 or 1, is unused
    slots = torch.tensor([0, 1], dtype=torch.uint8, device=line.device).repeat(lines)
    slots[line * 2 + slot] = index.to(torch.uint8)
    return slots.view(lines, 2), slot


def _place(row: Tensor, group: Tensor, tiles: int, bits: int) -> Tensor:
    """The place of slot 0 of a row and a group."""
    odds, step = 16 // bits, step_of(bits)
    tile, strip, high, low = row // TILE, row // 16 % 4, row // 8 % 2, row % 8
    number = group // step * tiles + tile
    half, upper, lane, odd = group // (step // 2) % 2, group // (step // 4) % 2, group // odds % 4, group % odds
    for digit, base in ((strip, 4), (half, 2), (low, 8), (lane, 4), (upper, 2), (high, 2), (odd, odds)):
        number = number * base + digit
    return number * 2


#: Axes of the bits of metadata, (tile, strip, high, low, step, half, upper, lane and odd), in the order of the words.
_WORDS = {16: (4, 0, 1, 3, 5, 6, 2, 7), 8: (4, 0, 1, 3, 6, 2, 5, 7)}


def _meta(slots: Tensor, parents: int, groups: int, bits: int) -> Tensor:
    """Words of metadata from the slots of every (row, group)."""
    four = slots[:, 0].int() | slots[:, 1].int() << 2
    step = step_of(bits)
    axes = four.view(parents, 4, 2, 8, groups // step, 2, 2, step // 4).permute(_WORDS[bits])
    eight = axes.reshape(-1, 8)  # groups of a word: no two share a bit, so that the sum is their union
    shift = torch.arange(0, 32, 4, dtype=torch.int32, device=slots.device)
    return (eight << shift).sum(-1, dtype=torch.int32)


def _indices(meta: Tensor, parents: int, groups: int, bits: int) -> Tensor:
    """Indices of both slots in the order of the values."""
    shift = torch.arange(0, 32, 4, dtype=torch.int32, device=meta.device)
    step, axes = step_of(bits), _WORDS[bits]
    sizes = (parents, 4, 2, 8, groups // step, 2, 2, step // 4)
    four = (meta[:, None] >> shift).view([sizes[axis] for axis in axes])
    natural = four.permute([axes.index(axis) for axis in range(8)]).unflatten(7, (4, 16 // bits))
    # tile, strip, high, low, step, half, upper, lane, odd -> step, tile, strip, half, low, lane, upper, high, odd
    four = natural.permute(4, 0, 1, 5, 3, 7, 6, 2, 8)
    return torch.stack((four & 3, four >> 2 & 3), -1)


def _rows_and_groups(parents: int, groups: int, bits: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Row and group of every pair, in the order of the values, with a last axis of 1."""
    odds, step = 16 // bits, step_of(bits)
    sizes = (groups // step, parents, 4, 2, 8, 4, 2, 2, odds, 1)

    def axis(i: int) -> Tensor:
        view = [1] * len(sizes)
        view[i] = sizes[i]
        return torch.arange(sizes[i], device=device).view(view)

    row = axis(1) * TILE + axis(2) * 16 + axis(7) * 8 + axis(4)
    group = axis(0) * step + axis(3) * (step // 2) + axis(6) * (step // 4) + axis(5) * odds + axis(8)
    return row.expand(sizes), group.expand(sizes)
