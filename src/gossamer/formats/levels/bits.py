"""The level of packed tiles: one bit for each coordinate, and values only for those that are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Unpacked, require

#: Bits of a word.
WORD = 32
_MOST = 2**31 - 1


@dataclass(frozen=True)
class Bits(Level):
    """Any set of coordinates: one bit for each, in words of 32, and the number of entries before each parent.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Bits().pack(torch.tensor([0, 0, 1]), torch.tensor([0, 33, 5]), 2, 64)
    >>> arrays["pos"].tolist(), arrays["bits"].tolist(), position.tolist(), n
    ([0, 2, 3], [1, 2, 32, 0], [0, 1, 2], 3)
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "bits")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "bits": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents + 1", "bits": "parents * (size / 32)"}

    def check_sizes(self, parents: int, size: int) -> None:
        require(size % WORD == 0, f"Bits takes coordinates in steps of {WORD}, not {size}")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        key = parent * size + coord
        flags = torch.zeros(parents * size, dtype=torch.bool, device=coord.device)
        flags[key] = True
        before = flags.cumsum(0)
        pos = torch.zeros(parents + 1, dtype=torch.int64, device=coord.device)
        pos[1:] = before[size - 1 :: size] if size else 0
        require(int(pos[-1]) <= _MOST, f"Bits stores up to {_MOST} entries, not {int(pos[-1])}")
        return {"pos": pos.int(), "bits": _words(flags)}, before[key] - 1, int(pos[-1])

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        key = _flags(arrays["bits"]).nonzero().view(-1)
        return key // max(size, 1), key % max(size, 1), None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        counts = _flags(arrays["bits"]).view(parents, size).sum(1)
        pos = arrays["pos"].long()
        agrees = bool((pos.diff() == counts).all()) and int(pos[0]) == 0
        require(agrees, "pos does not agree with the bits of each parent")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return int(arrays["pos"][-1])


def _words(flags: Tensor) -> Tensor:
    """Words of 32 bits from a flag for each bit."""
    shift = torch.arange(WORD, dtype=torch.int32, device=flags.device)
    return (flags.view(-1, WORD).int() << shift).sum(1, dtype=torch.int32)


def _flags(words: Tensor) -> Tensor:
    """Undo :func:`_words`."""
    shift = torch.arange(WORD, dtype=torch.int32, device=words.device)
    return (words.view(-1, 1) >> shift & 1).view(-1).bool()
