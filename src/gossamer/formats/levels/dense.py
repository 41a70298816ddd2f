"""The dense level: every coordinate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Store, Unpacked, Walk


@dataclass(frozen=True)
class Dense(Level):
    """Every coordinate exists, so only the size is needed.

    Examples
    --------
    >>> Dense().positions({}, parents=3, size=4)
    12
    """

    full: ClassVar[bool] = True
    whole: ClassVar[bool] = True
    walk: ClassVar[Walk | None] = Walk("p * size", "(p + 1) * size", "at - p * size", locate="p * size + i")
    store: ClassVar[Store | None] = Store("p * size + i")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        return {}, parent * size + coord, parents * size

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent = torch.arange(parents, device=device)[:, None].expand(parents, size)
        coord = torch.arange(size, device=device).expand(parents, size)
        return parent.reshape(-1), coord.reshape(-1), None

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size
