"""The level of packed bitmaps: one bit for each position and the values side by side, in the order of tensor cores.

A parent is a tile of 64 rows. Its columns come in pieces of 64, each of four steps of 16 columns by four strips of 16
rows. With row = 16 strip + 8 high + low and column = 16 step + 8 upper + 2 lane + odd in a piece, a thread of
``mma.m16n8k16`` is (low, lane), and has the eight positions (upper, high, odd) of a strip and a step. The values of a
piece are in the order of

    (step, strip, low, lane, upper, high, odd)

without gaps, and each piece begins at a multiple of 8. ``pos`` holds where, divided by 8. ``bits`` has 192 words for
each piece. Of the first 128 each has the bits of four threads, and is at (step, low, strip). The other 64 say, 16 bits
each and in the same order, how many values of the piece come before those of a word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Unpacked, require

TILE = 64  # rows, and columns of a piece
PIECE = TILE * TILE
ALIGN = 8  # values: 16 bytes at half precision
WORDS = 192  # of a piece: bits, and where the values of each word begin
_BITS = 128


@dataclass(frozen=True)
class Pieces(Level):
    """Any set of positions: a bit for each, and values only where it is set.

    The coordinate below a tile is ``row * width + column``, for its 64 rows and ``width`` columns.

    Examples
    --------
    >>> import torch
    >>> level = Pieces()
    >>> arrays, position, n = level.pack(torch.tensor([0, 0]), torch.tensor([3, 64 * 8 + 1]), 1, 64 * 64)
    >>> arrays["pos"].tolist(), position.tolist(), n  # thread 1 has column 3 of row 0; thread 0 column 1 of row 8
    ([0, 1], [1, 0], 8)
    >>> bin(arrays["bits"][0])  # thread 0: upper 0, high 1, odd 1; thread 1: upper 0, high 0, odd 1
    '0b1000001000'
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "bits")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "bits": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents * (size / 4096) + 1", "bits": "parents * (size / 4096) * 192"}

    @property
    def ordered(self) -> bool:
        return False

    def check_sizes(self, parents: int, size: int) -> None:
        require(size % PIECE == 0, f"Pieces takes coordinates in steps of {PIECE}, not {size}")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        width = max(size // TILE, 1)
        row, col = coord // width, coord % width
        pieces = parents * (width // TILE)
        place = (parent * (width // TILE) + col // TILE) * PIECE + _place(row, col % TILE)
        flags = torch.zeros(pieces * PIECE, dtype=torch.bool, device=coord.device)
        flags[place] = True
        counts = flags.view(-1, PIECE).sum(1)
        pos = _starts(counts)
        before = pos[:-1].long() * ALIGN - (counts.cumsum(0) - counts)  # places of padding before each piece
        rank = flags.cumsum(0)[place] - 1
        return {"pos": pos, "bits": _words(flags)}, rank + before[place // PIECE], int(pos[-1]) * ALIGN

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        width = size // TILE
        pos, flags = arrays["pos"].long(), _flags(arrays["bits"])
        counts = flags.sum(1)
        key = flags.view(-1).nonzero().view(-1)
        piece = key // PIECE
        rank = torch.arange(key.numel(), device=device) - (counts.cumsum(0) - counts)[piece]
        position = pos[piece] * ALIGN + rank
        row, col = _row_and_col(key % PIECE)
        across = max(width // TILE, 1)
        places = int(pos[-1]) * ALIGN
        parent, coord = (torch.zeros(places, dtype=torch.int64, device=device) for _ in range(2))
        parent[position] = piece // across
        coord[position] = row * width + piece % across * TILE + col
        if key.numel() == places:
            return parent, coord, None
        valid = torch.zeros(places, dtype=torch.bool, device=device)
        valid[position] = True
        return parent, coord, valid

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        pos, bits = arrays["pos"], arrays["bits"]
        flags = _flags(bits)
        require(bool((_words(flags) == bits).all()), "bits has a start that does not agree with the bits before it")
        require(bool((pos == _starts(flags.sum(1))).all()), "pos does not agree with the number of bits of each piece")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return int(arrays["pos"][-1]) * ALIGN


def _starts(counts: Tensor) -> Tensor:
    """Where pieces with these numbers of values begin, in units of 8 values."""
    pos = torch.zeros(counts.numel() + 1, dtype=torch.int64, device=counts.device)
    torch.cumsum((counts + ALIGN - 1) // ALIGN, 0, out=pos[1:])
    return pos.to(torch.int32)


def _place(row: Tensor, col: Tensor) -> Tensor:
    """Number of a position in its piece, in the order of the values."""
    thread = row % 8 * 4 + col % 8 // 2
    return (((col // 16 * 4 + row // 16) * 32 + thread) * 2 + col // 8 % 2) * 4 + row // 8 % 2 * 2 + col % 2


def _row_and_col(place: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`_place`."""
    thread = place // 8 % 32
    row = place // 256 % 4 * 16 + place // 2 % 2 * 8 + thread // 4
    return row, place // 1024 * 16 + place // 4 % 2 * 8 + thread % 4 * 2 + place % 2


def _words(flags: Tensor) -> Tensor:
    """Words from a flag for each position, in the order of the values."""
    threads = flags.view(-1, 4, 4, 8, 32)  # piece, step, strip, four threads, bit
    shift = torch.arange(32, dtype=torch.int64, device=flags.device)
    counts = threads.sum(-1).view(-1, _BITS)
    before = (counts.cumsum(1) - counts).view(threads.shape[:-1]).transpose(2, 3).reshape(-1, _BITS // 2, 2)
    bits = (threads.transpose(2, 3).long() << shift).sum(-1).view(-1, _BITS)
    return torch.cat((bits, before[..., 0] | before[..., 1] << 16), 1).to(torch.int32).reshape(-1)


def _flags(bits: Tensor) -> Tensor:
    """Undo :func:`_words`: [pieces, 4096]."""
    shift = torch.arange(32, dtype=torch.int32, device=bits.device)
    words = bits.view(-1, WORDS)[:, :_BITS].reshape(-1, 4, 8, 4, 1)
    return (words >> shift & 1).bool().transpose(2, 3).reshape(-1, PIECE)
