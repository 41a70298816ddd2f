"""A matrix of e4m3 as two planes of 2:4: packing, unpacking, and the check of arrays from a file.

The first plane has two values of every group of four columns, kept or not. Where more are kept, it has places 0 and 1,
and the second plane has places 2 and 3. So half of the values have a fixed place, and need no search.

A piece is 16 rows x 128 columns. With row = 8 high + low and column = 64 pair + 32 step + 16 upper + 4 t + place in a
piece, a group belongs to lane 4 low + t, and is word 4 step + 2 upper + high of a pair. Of a piece,

- ``values`` has the words of the first plane, two values each, in the order (pair, lane, word), 1024 bytes, and then
  those of the second plane, as many as there are, in the order (lane, pair, word), up to a multiple of 16 bytes. It is
  cut into lines as long as the longest piece, whose length is so known without reading ``pos``; the last line is
  filled up with zeros.
- ``bits`` has 64 words of metadata, as ``mma.sp.m16n8k32`` reads it, two for each lane, one for a pair; and one more
  word for each lane. Its bit 4 w + pair says that word w of a pair is in the second plane too. The other two bits of
  the first five nibbles say where the lane's words of the second plane begin: they count 1, 16, 4, 64 and 255.
- ``pos`` has the place where it begins, in units of 16 bytes.

A random matrix takes 0.85, 0.78, 0.73, 0.71 and 0.70 of the bytes of dense e4m3 at 50, 60, 70, 80 and 90 %.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

TILE = 16  # rows
WIDTH = 128  # columns of a piece
WORDS = 96  # of a piece in bits
FIRST = 1024  # bytes of the first plane
UNIT = 16  # bytes
_META = 64  # words of metadata
#: By what is kept of a group (bit n: place n), the places of the first plane.
_PLACES = tuple(
    (0, 1) if len(kept) > 2 or kept in ([], [0]) else (0, kept[0]) if len(kept) == 1 else (kept[0], kept[1])
    for kept in ([place for place in range(4) if mask >> place & 1] for mask in range(16))
)


class Planes(NamedTuple):
    """The arrays of a matrix, see above."""

    values: Tensor  # e4m3, [lines, bytes of the longest piece]
    bits: Tensor
    pos: Tensor


def pack_planes(small: Tensor) -> Planes:
    """Return a matrix of e4m3 in two planes.

    Examples
    --------
    >>> import torch
    >>> values, bits, pos = pack_planes(torch.tensor([[0, 5, 0, 0, 1.0, 2, 3, 0]]).to(torch.float8_e4m3fn))
    >>> values[0, [0, 1, 16, 17, 1024, 1025]].tolist(), pos.tolist()  # of lanes 0 and 1
    ([0.0, 5.0, 1.0, 2.0, 3.0, 0.0], [0, 65])
    """
    groups = _groups(small.view(torch.int8))
    kept = (groups & 127) != 0  # a zero may have a sign
    groups = groups.where(kept, 0)
    mask = (kept.to(torch.uint8) << torch.arange(4, dtype=torch.uint8, device=small.device)).sum(-1)
    places = torch.tensor(_PLACES, device=small.device)[mask]
    second = kept.sum(-1) > 2
    pos = _starts(second)
    lines = torch.zeros(_lines(pos), dtype=torch.int8, device=small.device)
    flat, begin = lines.view(-1), pos[:-1].long() * UNIT
    at = begin[:, None] + torch.arange(FIRST, device=small.device)
    flat[at] = groups.gather(-1, places).transpose(1, 2).reshape(-1, FIRST)
    flat[_second_at(second, pos)[:, None] + torch.arange(2, device=small.device)] = groups[..., 2:][second]
    bits = torch.cat([_metadata(places[..., 0] | places[..., 1] << 2), _flags(second)], 1)
    return Planes(lines.view(small.dtype), bits.view(-1), pos)


def unpack_planes(values: Tensor, bits: Tensor, pos: Tensor, rows: int, cols: int) -> Tensor:
    """Return the dense matrix of e4m3."""
    nibbles, second = _unpacked(bits)
    flat, begin = values.view(torch.int8).reshape(-1), pos[:-1].long() * UNIT
    first = flat[begin[:, None] + torch.arange(FIRST, device=bits.device)].view(-1, 2, 32, 8, 2).transpose(1, 2)
    groups = torch.zeros((*second.shape, 4), dtype=torch.int8, device=bits.device)
    groups.scatter_(-1, torch.stack([nibbles & 3, nibbles >> 2], -1).long(), first)
    at = _second_at(second, pos)[:, None] + torch.arange(2, device=bits.device)
    groups[..., 2:][second] = flat[at]
    return _matrix(groups, rows, cols).view(values.dtype)


def check_planes(values: Tensor, bits: Tensor, pos: Tensor, rows: int, cols: int) -> None:
    """Raise ValueError unless these are arrays of such a matrix: the kernel reads what they say without a check."""
    pieces = -(-rows // TILE) * -(-cols // WIDTH)
    if bits.dtype is not torch.int32 or pos.dtype is not torch.int32:
        raise ValueError(f"a bitmap has torch.int32 bits and places, not {bits.dtype} and {pos.dtype}")
    if bits.shape != (pieces * WORDS,) or pos.shape != (pieces + 1,):
        raise ValueError(
            f"a bitmap of {rows} x {cols} has {pieces * WORDS} words of bits and {pieces + 1} places, not "
            f"{tuple(bits.shape)} and {tuple(pos.shape)}"
        )
    nibbles, second = _unpacked(bits)
    if bool(((nibbles & 3) >= (nibbles >> 2)).any()) or bool((nibbles[second] != 4).any()):
        raise ValueError("the metadata of a bitmap names a column twice, or out of order")
    if not torch.equal(bits.view(-1, WORDS)[:, _META:], _flags(second)):
        raise ValueError("the words of a bitmap's second plane begin elsewhere")
    expected = _starts(second)
    if not torch.equal(pos, expected):
        raise ValueError("the places of a bitmap do not agree with its bits")
    if values.shape != _lines(expected):
        raise ValueError(f"the values of this bitmap are {_lines(expected)}, not {tuple(values.shape)}")


def _groups(bytes: Tensor) -> Tensor:
    """Groups of a matrix: [pieces, lane, pair, word, place]."""
    rows, cols = bytes.shape
    tiles, steps = -(-rows // TILE), -(-cols // WIDTH)
    if (rows, cols) != (tiles * TILE, steps * WIDTH):
        padded = bytes.new_zeros(tiles * TILE, steps * WIDTH)
        padded[:rows, :cols] = bytes
        bytes = padded
    # tile, high, low, step of 128, pair, step, upper, t, place
    natural = bytes.view(tiles, 2, 8, steps, 2, 2, 2, 4, 4)
    return natural.permute(0, 3, 2, 7, 4, 5, 6, 1, 8).reshape(-1, 32, 2, 8, 4)


def _matrix(groups: Tensor, rows: int, cols: int) -> Tensor:
    """Undo :func:`_groups`."""
    tiles, steps = -(-rows // TILE), -(-cols // WIDTH)
    natural = groups.view(tiles, steps, 8, 4, 2, 2, 2, 2, 4).permute(0, 7, 2, 1, 4, 5, 6, 3, 8)
    return natural.reshape(tiles * TILE, steps * WIDTH)[:rows, :cols].contiguous()


def _starts(second: Tensor) -> Tensor:
    """Where pieces begin, by which groups are in the second plane too."""
    units = FIRST // UNIT + -(-second.sum((1, 2, 3)) * 2 // UNIT)
    pos = torch.zeros(units.numel() + 1, dtype=torch.int64, device=second.device)
    torch.cumsum(units, 0, out=pos[1:])
    return pos.to(torch.int32)


def _lines(pos: Tensor) -> tuple[int, int]:
    """The shape of values."""
    longest = int(pos.diff().max()) if pos.numel() > 1 else FIRST // UNIT
    return -(-int(pos[-1]) // longest), longest * UNIT


def _second_at(second: Tensor, pos: Tensor) -> Tensor:
    """Where in values each word of the second plane is, in bytes."""
    flat = second.flatten(1)
    piece = flat.nonzero()[:, 0]
    nth = flat.cumsum(1)[flat] - 1
    return pos[piece].long() * UNIT + FIRST + 2 * nth


def _metadata(nibbles: Tensor) -> Tensor:
    """Words of metadata: [pieces, 64]."""
    # low, t, pair, step, upper, high -> low, step, upper, pair, (high, t)
    eight = nibbles.view(-1, 8, 4, 2, 2, 2, 2).permute(0, 1, 4, 5, 3, 6, 2).reshape(-1, 8).int()
    return (eight << _shifts(nibbles.device)).sum(1, dtype=torch.int32).view(-1, _META)


def _flags(second: Tensor) -> Tensor:
    """The word of each lane: [pieces, 32]."""
    each = (second[:, :, 0].int() | second[:, :, 1].int() << 1) << _shifts(second.device)
    count = second.sum((2, 3))
    start = count.cumsum(1) - count
    far = (start >= 255).int()
    left = (start - 255 * far).int()
    two = (left & 3, left >> 4 & 3, left >> 2 & 3, left >> 6 & 3, far)  # they count 1, 16, 4, 64 and 255
    word = each.sum(2, dtype=torch.int32)
    for nibble, bits in enumerate(two):
        word = word | bits << (4 * nibble + 2)
    return word


def _unpacked(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Four bits of metadata for each group, and which are in the second plane: [pieces, lane, pair, word]."""
    words = bits.view(-1, WORDS)
    eight = words[:, :_META].reshape(-1, 1) >> _shifts(bits.device) & 15
    nibbles = eight.view(-1, 8, 2, 2, 2, 2, 4).permute(0, 1, 6, 4, 2, 3, 5).reshape(-1, 32, 2, 8)
    each = words[:, _META:, None] >> _shifts(bits.device)
    return nibbles, torch.stack([each & 1, each >> 1 & 1], 2) != 0


def _shifts(device: torch.device) -> Tensor:
    return torch.arange(0, 32, 4, dtype=torch.int32, device=device)
