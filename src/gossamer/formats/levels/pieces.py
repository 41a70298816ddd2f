"""The level of packed bitmaps: codes of four columns each, and values in the order of tensor cores.

A parent is a strip of 16 rows; its columns come in pieces of 128. A group of four neighbours has at most four kept
values, so a piece is the sum of two planes for ``mma.sp.m16n8k32``, each with at most two values of a group. The
operand of a thread for a group and a plane is a word of two values. The first plane may have any two places, the
second one always has places 2 and 3. What is stored of a group:

=======================  ===========  ===============  ============  =====
kept places              first plane  first, one only  second plane  bytes
=======================  ===========  ===============  ============  =====
none                                                                 0
0, 1 or 2                             the value                      2
3                                                      2, 3          4
two                      both                                        4
0, 2, 3 or 1, 2, 3                    the first value  2, 3          6
0, 1, 2 or 0, 1, 3       0, 1                          2, 3          8
all                      0, 1                          2, 3          8
=======================  ===========  ===============  ============  =====

A single value is loaded as 16 bits, which makes it the first value of a word whose second one is zero. That is why
place 3 alone needs a word. A third kind of load, for a single value of the second plane, would store 0, 1, 2 in 6
bytes: 0.015 of the bytes of dense at 50 % and 0.005 at 70 %, for 24 more instructions of 290.

With row = 8 high + low and column = 64 pair + 32 step + 16 upper + 4 t + place in a piece, the group belongs to lane
4 low + t, which has eight of a pair, in the order (high, step, upper). ``codes`` has 72 words for each piece. The first
64 are codes of groups, two words for each lane: one for a pair, with four bits for each of its groups in that order.
The last eight have a byte for each lane, see below.

The values of a piece are rows of 64, in 32 columns of two: no two lanes ever read the same bank of shared memory. A
lane reads two streams in its column: single values from the first row on, and words, of which each takes a row,
behind them. In the first pair it reads the first halves of the rows of single values, in the second pair the second
halves. Streams differ in length. To need little padding, lanes change columns after the first pair: each continues
behind the words of another one. A lane's byte is the column in which it continues (five bits), and how many rows of
single values its own column has, less one (three bits). There is at least one such row. ``pos`` holds the row at
which each piece begins.

Bytes of a dense float16 matrix that a random one takes, by how often columns may swap the lane that continues in them
(``benchmarks/bitmap_bytes.py``). Before, single values took words:

=====================  =====  =====  =====  =====  =====
swaps                  50 %   60 %   70 %   80 %   90 %
=====================  =====  =====  =====  =====  =====
without padding        0.618  0.511  0.405  0.299  0.189
0                      0.697  0.592  0.483  0.373  0.267
4                      0.677  0.572  0.463  0.355  0.263
16 (this)              0.675  0.571  0.461  0.353  0.263
words only             0.731  0.632  0.528  0.414  0.283
=====================  =====  =====  =====  =====  =====
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Unpacked, require

TILE = 16  # rows
WIDTH = 128  # columns of a piece
PIECE = TILE * WIDTH
ALIGN = 64  # values of a row: a word for each of 32 lanes
WORDS = 72  # of a piece
MOST = PIECE + ALIGN  # values of a piece, with padding: a full one has a row for single values too
_CODES = 64  # words of codes
_GROUPS = 16  # of a lane
_SWAPS = 16  # of columns, at most
#: By what is kept of a group (bit n: place n). If there is a word of the first plane, and its places are not 0 and 1,
#: the code is the hardware's metadata, two bits for each place. Few instructions decode the others.
CODES = (0b0000, 0b0111, 0b0101, 0b0100, 0b0110, 0b1000, 0b1001, 0b1010, 0b0010, 0b1100, 0b1101, 0b1011, 0b1110, 0b0011,
         0b0001, 0b1111)  # fmt: skip


@dataclass(frozen=True)
class Pieces(Level):
    """Any set of positions: four bits for each group of four, and 16 or 32 bits only where something is kept.

    The coordinate below a strip is ``row * width + column``, for its 16 rows and ``width`` columns.

    Examples
    --------
    >>> import torch
    >>> level = Pieces()
    >>> arrays, position, n = level.pack(torch.tensor([0, 0]), torch.tensor([3, 128 * 8 + 5]), 1, 16 * 128)
    >>> arrays["pos"].tolist(), position.tolist(), n  # lane 0 has a word, after a row of which lane 1 has a value
    ([0, 2], [65, 2], 128)
    >>> [hex(word) for word in arrays["codes"][:3]]
    ['0x2', '0x0', '0x50000']
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "codes")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "codes": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents * (size / 2048) + 1", "codes": "parents * (size / 2048) * 72"}

    @property
    def ordered(self) -> bool:
        return False

    def check_sizes(self, parents: int, size: int) -> None:
        require(size % PIECE == 0, f"Pieces takes coordinates in steps of {PIECE}, not {size}")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        width = max(size // TILE, 1)
        row, col = coord // width, coord % width
        pieces = parents * (width // WIDTH)
        key = (parent * (width // WIDTH) + col // WIDTH) * PIECE + _key(row, col % WIDTH)
        flags = torch.zeros(pieces * PIECE, dtype=torch.bool, device=coord.device)
        flags[key] = True
        groups = _groups(flags)
        streams = _streams(groups)
        pos = _starts(streams.rows)
        return {"pos": pos, "codes": _words(groups, streams.change)}, streams.position(key, pos), int(pos[-1]) * ALIGN

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        width = size // TILE
        pos, (groups, change) = arrays["pos"], _unpacked(arrays["codes"])
        bit = torch.arange(4, dtype=torch.uint8, device=device)
        key = (groups.view(-1, 1) >> bit & 1).view(-1).nonzero().view(-1)
        position = _streams(groups, change % 32).position(key, pos)
        piece, (row, col) = key // PIECE, _row_and_col(key % PIECE)
        across = max(width // WIDTH, 1)
        places = int(pos[-1]) * ALIGN
        parent, coord = (torch.zeros(places, dtype=torch.int64, device=device) for _ in range(2))
        parent[position] = piece // across
        coord[position] = row * width + piece % across * WIDTH + col
        if key.numel() == places:
            return parent, coord, None
        valid = torch.zeros(places, dtype=torch.bool, device=device)
        valid[position] = True
        return parent, coord, valid

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        groups, change = _unpacked(arrays["codes"])
        lanes = torch.arange(32, dtype=torch.uint8, device=change.device)
        continued = change % 32
        require(bool((continued.sort(1).values == lanes).all()), "the last eight words of a piece are no permutation")
        streams = _streams(groups, continued)
        require(
            bool((streams.change == change).all()), "rows of single values do not agree with the codes of each piece"
        )
        require(bool((arrays["pos"] == _starts(streams.rows)).all()), "pos does not agree with the codes of each piece")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return int(arrays["pos"][-1]) * ALIGN


class _Streams(NamedTuple):
    """Where the values of each group are, [pieces, groups, lanes]."""

    groups: Tensor  # what is kept, four bits
    row: Tensor  # of the first word
    single: Tensor  # row of the single value
    column: Tensor
    change: Tensor  # [pieces, lanes]: where lanes continue after the first pair, and the rows before the words
    rows: Tensor  # of each piece

    def position(self, key: Tensor, pos: Tensor) -> Tensor:
        """Where the values of these positions are, given by their number in the order of the groups."""
        group = key // 4
        slot = _table(key.device).slot[self.groups.view(-1)[group].long(), key % 4]
        single, pair = slot < 0, key // (PIECE // 2) % 2
        row = torch.where(single, self.single.view(-1)[group], self.row.view(-1)[group] + slot // 2)
        row += pos[key // PIECE].long()
        return row * ALIGN + self.column.view(-1)[group] * 2 + torch.where(single, pair, slot % 2)


def _streams(groups: Tensor, change: Tensor | None = None) -> _Streams:
    """Follow the streams of all lanes; ``change``: where they continue, if that is decided."""
    table = _table(groups.device)
    words, singles = (kind[groups.long()].view(-1, 2, _GROUPS // 2, 32) for kind in (table.words, table.singles))
    row, single = words.cumsum(2) - words, singles.cumsum(2) - singles
    length, number = words.sum(2), singles.sum(2)
    if change is None:
        change = _change(length, number)
    change = change.long()
    lanes = torch.arange(32, device=groups.device).expand_as(change)
    column = torch.stack([lanes, change], 1)
    before = number[:, 0].scatter_reduce(1, change, number[:, 1], "amax").clamp_(1)  # rows of single values
    start = torch.stack([before, (before + length[:, 0]).gather(1, change)], 1)
    rows = (start + length).amax((1, 2))
    kept = (change + (before - 1) * 32).to(torch.uint8)
    column, row = column[:, :, None].expand_as(row), row + start[:, :, None]
    row, single, column = (each.reshape(groups.shape) for each in (row, single, column))
    return _Streams(groups, row, single, column, kept, rows)


def _change(length: Tensor, number: Tensor) -> Tensor:
    """Decide in which column each lane continues, so that the fullest column has few rows.

    First the lane with the longest second pair continues where the shortest first pair ended, and so on. Then the
    fullest column swaps its second pair with the column that helps most, until none helps or this was done 32 times.

    Examples
    --------
    >>> words, singles = torch.tensor([[[4, 1, 3], [2, 5, 9]]]), torch.zeros(1, 2, 3, dtype=torch.int64)
    >>> _change(words, singles).tolist()  # columns of four, one and three words
    [[0, 2, 1]]
    """
    size = 2 * length + number
    shortest = size[:, 0].argsort(dim=1, stable=True)
    longest = size[:, 1].argsort(dim=1, stable=True, descending=True)
    lane = torch.empty_like(shortest).scatter_(1, shortest, longest)  # that continues in each column
    for _ in range(_SWAPS):
        words, singles = length[:, 1].gather(1, lane), number[:, 1].gather(1, lane)
        most, full = _rows(length[:, 0], number[:, 0], words, singles).max(1, keepdim=True)
        here = _rows(length[:, 0].gather(1, full), number[:, 0].gather(1, full), words, singles)
        there = _rows(length[:, 0], number[:, 0], words.gather(1, full), singles.gather(1, full))
        best, other = torch.maximum(here, there).min(1, keepdim=True)
        other = torch.where(best < most, other, full)
        if bool((other == full).all()):
            break
        swapped = torch.cat([lane.gather(1, other), lane.gather(1, full)], 1)
        lane = lane.scatter(1, torch.cat([full, other], 1), swapped)
    columns = torch.arange(lane.shape[1], device=lane.device).expand_as(lane)
    return torch.empty_like(lane).scatter_(1, lane, columns)


def _rows(words: Tensor, singles: Tensor, words1: Tensor, singles1: Tensor) -> Tensor:
    """Rows of a column, by what the first and the second pair have in it."""
    return words + words1 + torch.maximum(singles, singles1).clamp(1)


class _Table(NamedTuple):
    """By what is kept of a group."""

    words: Tensor  # [16]
    singles: Tensor  # [16]
    slot: Tensor  # [16, 4]: where the value of each place is, in values after the first word; -1: a single value
    code: Tensor  # [16]
    kept: Tensor  # [16], by code


def _table(device: torch.device) -> _Table:
    """Place the values of every group.

    Examples
    --------
    >>> table = _table(torch.device("cpu"))
    >>> [(int(table.words[kept]), table.slot[kept].tolist()) for kept in (0b1111, 0b1101, 0b0010, 0b1001)]
    [(2, [0, 1, 2, 3]), (1, [-1, 0, 0, 1]), (0, [0, -1, 0, 0]), (1, [0, 0, 0, 1])]
    """
    words, singles, slots = [], [], []
    for kept in range(16):
        places = [place for place in range(4) if kept >> place & 1]
        single = places[:1] if kept in (0b0001, 0b0010, 0b0100, 0b1101, 0b1110) else []
        rest = places[len(single) :]
        slot = [0] * 4
        for n, place in enumerate(rest):
            slot[place] = place if len(rest) > 2 else 1 if rest == [3] else n
        for place in single:
            slot[place] = -1
        words.append(-(-len(rest) // 2))
        singles.append(len(single))
        slots.append(slot)
    code = torch.tensor(CODES, dtype=torch.uint8, device=device)
    kept_of = code.long().argsort().to(torch.uint8)
    words_of, singles_of, slot_of = (torch.tensor(each, device=device) for each in (words, singles, slots))
    return _Table(words_of, singles_of, slot_of, code, kept_of)


def _starts(rows: Tensor) -> Tensor:
    """Where pieces with these numbers of rows begin."""
    pos = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(rows, 0, out=pos[1:])
    return pos.to(torch.int32)


def _key(row: Tensor, col: Tensor) -> Tensor:
    """Number of a position in its piece, in the order of the groups: (pair, high, step, upper, lane, place)."""
    lane = row % 8 * 4 + col // 4 % 4
    return ((col // 64 * 8 + row // 8 * 4 + col // 16 % 4) * 32 + lane) * 4 + col % 4


def _row_and_col(key: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`_key`."""
    lane, group = key // 4 % 32, key // 128
    return group // 4 % 2 * 8 + lane // 4, group // 8 * 64 + group % 4 * 16 + lane % 4 * 4 + key % 4


def _groups(flags: Tensor) -> Tensor:
    """Four bits from a flag for each position: [pieces, groups, lanes]."""
    shift = torch.arange(4, dtype=torch.uint8, device=flags.device)
    return (flags.view(-1, _GROUPS, 32, 4).to(torch.uint8) << shift).sum(-1, dtype=torch.uint8)


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(0, 32, 4, dtype=torch.int32, device=device)[:, None]


def _words(groups: Tensor, change: Tensor) -> Tensor:
    """The words of pieces: two of codes for each lane, then a byte for each."""
    codes = _table(groups.device).code[groups.long()].int().view(-1, 2, 8, 32)
    words = (codes << _shifts(groups.device)).sum(2, dtype=torch.int32).transpose(1, 2)
    return torch.cat([words.reshape(-1, _CODES), change.contiguous().view(torch.int32)], 1).view(-1)


def _unpacked(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`_words`."""
    words = bits.view(-1, WORDS)
    codes = words[:, :_CODES].reshape(-1, 32, 2).transpose(1, 2)[:, :, None] >> _shifts(bits.device) & 15
    groups = _table(bits.device).kept[codes.reshape(-1, _GROUPS, 32).long()]
    return groups, words[:, _CODES:].contiguous().view(torch.uint8)
