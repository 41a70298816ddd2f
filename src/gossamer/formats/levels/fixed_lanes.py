"""The levels of fixed lanes: sixteen parents side by side, with the same number of places each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import BYTE, Arrays, Level, Packed, Store, Unpacked, Walk, rank, require, starts
from gossamer.formats.levels.lanes import LANES, bytes_of, check_bytes, lanes_of, require_lanes


@dataclass(frozen=True)
class FixedLanes(Level):
    """Sixteen parents side by side, ``width`` places each.

    Entry j below parent p is at ``(p // 16 * width + j) * 16 + p % 16``.

    The coordinates may be divided into ``parts`` of equal size, each with an equal share of the places.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = FixedLanes(2).pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), n
    ([0, 16, 1], 32)
    """

    width: int = 1
    parts: int = 1
    #: Coordinates that the bits of a place can tell apart.
    most: ClassVar[int] = 254
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"crd": BYTE}
    lengths: ClassVar[dict[str, str]] = {"crd": "parents * width"}
    walk: ClassVar[Walk] = Walk(
        "p / 16 * width",
        "(p / 16 + 1) * width",
        "crd[at]",
        at="q * 16 + p % 16",
        real="crd[at] < size",
        ordered=False,
    )
    store: ClassVar[Store | None] = Store("(p / 16 * width + rank) * 16 + p % 16", "crd[at] = i", "coordinates")

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        most = int(counts.max()) if counts.numel() else 0
        self._require_share(most <= self.width, most, self.width, size)
        return {"crd": self._stored(torch.full((parents * self.width,), size, dtype=torch.uint8))}

    def stored(self, arrays: Arrays, parents: int, size: int) -> None:
        if self.parts > 1:
            self.check(arrays, parents, size)

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        self._check_parts(parent, coord, size)
        position = (parent // LANES * self.width + rank(parent, coord)) * LANES + parent % LANES
        crd = self._stored(bytes_of(coord, position, parents * self.width, size))
        return {"crd": crd}, position, parents * self.width

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        group = torch.arange(parents // LANES * self.width, device=device) // self.width
        crd = self._codes(arrays["crd"], parents * self.width)
        return lanes_of(group), crd.long(), crd < size

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd, places = arrays["crd"], parents * self.width
        check_bytes(self._codes(crd, places), size)
        parent, coord, valid = self.unpack(arrays, parents, size, crd.device)
        self._check_parts(parent[valid], coord[valid], size)

    def check_sizes(self, parents: int, size: int) -> None:
        require_lanes(self, parents, size, self.most)
        cut = size % self.parts == 0 and self.width % self.parts == 0
        require(cut, f"{size} coordinates and {self.width} places can't be cut into {self.parts} parts")

    def _stored(self, crd: Tensor) -> Tensor:
        """A byte for each place, as it is stored."""
        return crd

    def _codes(self, crd: Tensor, places: int) -> Tensor:
        """What is stored, as a byte for each place."""
        return crd

    def _check_parts(self, parent: Tensor, coord: Tensor, size: int) -> None:
        """No part may hold more than its share: n of each m."""
        n, m = self.width // self.parts, max(size // self.parts, 1)
        new = starts(parent, coord)
        most = int(torch.bincount((parent * self.parts + coord // m)[new]).max()) if parent.numel() else 0
        self._require_share(most <= n, most, n, m)

    def _require_share(self, fits: bool, most: int, n: int, m: int) -> None:
        require(fits, f"a row keeps {most} of {m} columns, at most {n} of each {m} fit")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * self.width

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"width": self.width}
