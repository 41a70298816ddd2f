"""The level of packed bitmaps: one bit for each position, and the values in the order of tensor cores.

A parent is a tile of 64 rows. Its columns come in pieces of 64, each of four steps of 16 columns by four strips of 16
rows. With row = 16 strip + 8 high + low and column = 16 step + 8 upper + 2 t + odd in a piece, a thread of
``mma.m16n8k16`` is lane 4 low + t, and has eight positions (upper, high, odd) of a strip and a step, an octet: a byte
of ``bits``. ``bits`` has 128 words for each piece, at (step, lane), with a byte for each strip.

Each lane has its own stream of words, each of two values, through the octets of a piece in the order (step, strip). A
pair of neighbours (odd 0 and 1) that are both kept is a word. In an octet these words come first, then the other
values, two a word. If the last word has room for one more, the next octet fills it first; if that one has only complete
pairs, the room stays empty. Word n of all 32 lanes makes row n of the piece, 64 values: no two lanes ever read the
same bank of shared memory. Lanes with fewer words than others are padded. ``pos`` holds the row at which each piece
begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Unpacked, require

TILE = 64  # rows, and columns of a piece
PIECE = TILE * TILE
ALIGN = 64  # values of a row: a word for each of 32 lanes
WORDS = 128  # of a piece
_OCTETS = 16  # of a lane


@dataclass(frozen=True)
class Pieces(Level):
    """Any set of positions: a bit for each, and values only where it is set.

    The coordinate below a tile is ``row * width + column``, for its 64 rows and ``width`` columns.

    Examples
    --------
    >>> import torch
    >>> level = Pieces()
    >>> arrays, position, n = level.pack(torch.tensor([0, 0]), torch.tensor([3, 64 * 8 + 1]), 1, 64 * 64)
    >>> arrays["pos"].tolist(), position.tolist(), n  # lane 1 has column 3 of row 0; lane 0 column 1 of row 8
    ([0, 1], [2, 0], 64)
    >>> [bin(word) for word in arrays["bits"][:2]]  # lane 0: upper 0, high 1, odd 1; lane 1: upper 0, high 0, odd 1
    ['0b1000', '0b10']
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "bits")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "bits": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents * (size / 4096) + 1", "bits": "parents * (size / 4096) * 128"}

    @property
    def ordered(self) -> bool:
        return False

    def check_sizes(self, parents: int, size: int) -> None:
        require(size % PIECE == 0, f"Pieces takes coordinates in steps of {PIECE}, not {size}")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        width = max(size // TILE, 1)
        row, col = coord // width, coord % width
        pieces = parents * (width // TILE)
        key = (parent * (width // TILE) + col // TILE) * PIECE + _key(row, col % TILE)
        flags = torch.zeros(pieces * PIECE, dtype=torch.bool, device=coord.device)
        flags[key] = True
        streams = _streams(_octets(flags))
        pos = _starts(streams.rows)
        return {"pos": pos, "bits": _words(streams.octets)}, streams.position(key, pos), int(pos[-1]) * ALIGN

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        width = size // TILE
        pos, octets = arrays["pos"], _bytes(arrays["bits"])
        bit = torch.arange(8, dtype=octets.dtype, device=device)
        key = (octets.view(-1, 1) >> bit & 1).view(-1).nonzero().view(-1)
        position = _streams(octets).position(key, pos)
        piece, (row, col) = key // PIECE, _row_and_col(key % PIECE)
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
        rows = _streams(_bytes(arrays["bits"])).rows
        require(bool((arrays["pos"] == _starts(rows)).all()), "pos does not agree with the bits of each piece")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return int(arrays["pos"][-1]) * ALIGN


class _Streams(NamedTuple):
    """Where the octets of each lane begin, [pieces, octets, lanes]."""

    octets: Tensor  # bytes
    word: Tensor  # number of the first word that the octet may write to
    half: Tensor  # 1 if this word has one value already
    rows: Tensor  # of each piece

    def position(self, key: Tensor, pos: Tensor) -> Tensor:
        """Where the values of these positions are, given by their number in the order of the octets."""
        octet = key // 8
        slot = _table(key.device).slot[self.half.view(-1)[octet], self.octets.view(-1)[octet].long(), key % 8]
        word = self.word.view(-1)[octet] + slot // 2 + pos[key // PIECE].long()
        return word * ALIGN + octet % 32 * 2 + slot % 2


def _streams(octets: Tensor) -> _Streams:
    """Follow the streams of all lanes through their 16 octets."""
    table = _table(octets.device)
    word = torch.zeros((octets.shape[0], 32), dtype=torch.int64, device=octets.device)
    half = torch.zeros_like(word)
    words, halves = [], []
    for octet in octets.long().unbind(1):
        words.append(word)
        halves.append(half)
        word, half = word + table.words[half, octet], table.half[half, octet]
    rows = (word + half).amax(1)
    return _Streams(octets, torch.stack(words, 1), torch.stack(halves, 1), rows)


class _Table(NamedTuple):
    """What an octet does to a stream, by whether its first word has one value already, and by the byte."""

    slot: Tensor  # [2, 256, 8]: where the value of each position is, in values after the first word
    words: Tensor  # [2, 256]: the words that the stream advances by
    half: Tensor  # [2, 256]: does the word then have one value already?


def _table(device: torch.device) -> _Table:
    """Place the values of every octet.

    Examples
    --------
    >>> slot, words, half = _table(torch.device("cpu"))
    >>> slot[0, 0b00_11_01_00, 2:6].tolist()  # pair 2 is the first word, the value of pair 1 has the next one
    [2, 0, 0, 1]
    >>> slot[1, 0b00_11_01_00, 2:6].tolist()  # the value of pair 1 fills the word that is begun
    [1, 0, 2, 3]
    >>> words[:, 0b00_11_01_00].tolist(), half[:, 0b00_11_01_00].tolist()
    ([1, 2], [1, 0])
    """
    begun = torch.arange(2, device=device).view(2, 1, 1)
    kept = torch.arange(256, device=device).view(256, 1, 1) >> torch.arange(8, device=device).view(4, 2) & 1
    both = kept.sum(2) == 2
    single = (kept.sum(2) == 1).long()
    whole = 2 * (begun + both.cumsum(1) - 1)  # where a pair is, in values
    end = 2 * (begun[..., 0] + both.sum(1))  # where single values begin
    rank = single.cumsum(1) - 1 - begun  # -1: fills the word that is begun
    alone = torch.where(rank < 0, 1, end[..., None] + rank)
    slot = torch.where(both, whole, alone)[..., None] + torch.arange(2, device=device) * both[..., None]
    end = end + (single.sum(1) - begun[..., 0]).clamp(min=0)
    nothing = (kept.sum((1, 2)) == 0).expand(2, 256)
    words, half = torch.where(nothing, 0, end // 2), torch.where(nothing, begun[..., 0], end % 2)
    return _Table((slot * kept.view(256, 4, 2)).view(2, 256, 8), words, half)


def _starts(rows: Tensor) -> Tensor:
    """Where pieces with these numbers of rows begin."""
    pos = torch.zeros(rows.numel() + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(rows, 0, out=pos[1:])
    return pos.to(torch.int32)


def _key(row: Tensor, col: Tensor) -> Tensor:
    """Number of a position in its piece, in the order of the octets: (step, strip, lane, upper, high, odd)."""
    lane = row % 8 * 4 + col % 8 // 2
    return (((col // 16 * 4 + row // 16) * 32 + lane) * 2 + col // 8 % 2) * 4 + row // 8 % 2 * 2 + col % 2


def _row_and_col(key: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`_key`."""
    lane = key // 8 % 32
    row = key // 256 % 4 * 16 + key // 2 % 2 * 8 + lane // 4
    return row, key // 1024 * 16 + key // 4 % 2 * 8 + lane % 4 * 2 + key % 2


def _octets(flags: Tensor) -> Tensor:
    """Bytes from a flag for each position: [pieces, octets, lanes]."""
    shift = torch.arange(8, dtype=torch.uint8, device=flags.device)
    return (flags.view(-1, _OCTETS, 32, 8).to(torch.uint8) << shift).sum(-1, dtype=torch.uint8)


def _words(octets: Tensor) -> Tensor:
    """Words from bytes: those of the four strips of a step are one."""
    shift = torch.arange(0, 32, 8, dtype=torch.int32, device=octets.device).view(4, 1)
    return (octets.view(-1, 4, 4, 32).int() << shift).sum(2, dtype=torch.int32).view(-1)


def _bytes(bits: Tensor) -> Tensor:
    """Undo :func:`_words`."""
    shift = torch.arange(0, 32, 8, dtype=torch.int32, device=bits.device).view(4, 1)
    return (bits.view(-1, 4, 1, 32) >> shift & 255).to(torch.uint8).view(-1, _OCTETS, 32)
