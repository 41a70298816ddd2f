"""The level of near lanes: delta-encoded coordinates in half a byte, sixteen parents side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats.levels.base import BYTE, Arrays, Level, Packed, Unpacked, rank, require, starts
from gossamer.formats.levels.halves import halves, paired
from gossamer.formats.levels.lanes import LANES, lanes_of, require_lanes


@dataclass(frozen=True)
class NearLanes(Level):
    """:class:`Lanes` in half the bytes: coordinates are delta-encoded, from -1 on.

    Two steps of a lane share a byte, the first in its lower half, and every group has an even number of steps. A half
    of 1 to 14 is an entry this far ahead of the last. 15 moves ahead without an entry. 0 is an entry if it follows a
    15, and otherwise nothing.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = NearLanes().pack(torch.tensor([0, 0, 1]), torch.tensor([4, 40, 2]), 16, 64)
    >>> halves(arrays["crd"]).view(-1, 16)[:, :2].T.tolist()  # 5, 15 + 15 + 6; 3
    [[5, 15, 15, 6], [3, 0, 0, 0]]
    >>> position.tolist(), arrays["pos"].tolist(), n
    ([0, 48, 1], [0, 4], 64)
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "crd": BYTE}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents / 16 + 1", "crd": "pos[parents / 16] / 2 * 16"}

    def check_sizes(self, parents: int, size: int) -> None:
        require_lanes(self, parents, size, 2**31 - 1)

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        new = starts(parent, coord)
        entry, parent, coord = torch.cumsum(new, 0) - 1, parent[new], coord[new]
        nth = rank(parent, coord)
        before = torch.where(nth > 0, coord.roll(1), -1) if coord.numel() else coord
        ahead = coord - before
        moves = ahead // 15  # places that only move on; one less than 15 ahead needs none
        every = torch.cumsum(moves + 1, 0)
        first = torch.cummax(torch.where(nth == 0, every - moves - 1, 0), 0).values if every.numel() else every
        step = every - first - 1
        need = torch.zeros(parents // LANES, dtype=torch.int64, device=coord.device)
        need.scatter_reduce_(0, parent // LANES, step + 1, "amax")
        pos = torch.zeros(need.numel() + 1, dtype=torch.int64, device=coord.device)
        torch.cumsum((need + 1) // 2 * 2, 0, out=pos[1:])
        position = (pos[parent // LANES] + step) * LANES + parent % LANES
        codes = torch.zeros(int(pos[-1]) * LANES, dtype=torch.uint8, device=coord.device)
        codes[position] = (ahead - 15 * moves).to(torch.uint8)
        of = torch.repeat_interleave(torch.arange(moves.numel(), device=coord.device), moves)
        codes[position[of] - (rank(of, torch.arange(of.numel(), device=of.device)) + 1) * LANES] = 15
        return {"pos": pos, "crd": paired(codes)}, position[entry], codes.numel()

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, codes = arrays["pos"].long(), halves(arrays["crd"])
        steps = codes.numel() // LANES
        group = torch.repeat_interleave(torch.arange(parents // LANES, device=device), pos.diff(), output_size=steps)
        ends = F.pad(codes.view(-1, LANES).long().cumsum(0), (0, 0, 1, 0))
        return lanes_of(group), (ends[1:] - ends[pos[group]] - 1).view(-1), near_entries(arrays["crd"])

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        pos, crd = arrays["pos"], arrays["crd"]
        require(int(pos[0]) == 0, f"pos starts at {int(pos[0])}, must start at 0")
        require(not bool((pos[1:] < pos[:-1]).any()), "pos runs backwards, must never decrease")
        require(not bool((pos % 2).any()), "pos has an odd number, every group must have an even number of steps")
        _, coord, _ = self.unpack(arrays, parents, size, crd.device)
        require(not bool((coord >= size).any()), f"crd has a coordinate outside 0 .. {size - 1}")
        last = halves(crd).view(-1, LANES)[pos[1:][pos.diff() > 0].long() - 1]
        require(not bool((last == 15).any()), "crd moves on at the end of a group, where an entry must follow")

    @property
    def ordered(self) -> bool:
        return False

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return 2 * arrays["crd"].numel()


def near_entries(crd: Tensor) -> Tensor:
    """Return which places of :class:`NearLanes` are entries; no group ends with a 15, so the one before needs no care.

    Examples
    --------
    >>> import torch
    >>> crd = paired(torch.tensor([15, 3, 0, 0], dtype=torch.uint8).repeat_interleave(16))
    >>> near_entries(crd).view(4, 16)[:, 0].tolist(), near_entries(paired(halves(crd)[[0] * 16 + [40] * 16]))[16].item()
    ([False, True, False, False], True)
    """
    codes = halves(crd)
    before = F.pad(codes, (LANES, 0))[: codes.numel()]
    return torch.where(codes == 0, before == 15, codes < 15)
