"""The levels of the packed formats: rows sorted by how full they are, and sixteen of them side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats.levels import Arrays, Level, Packed, Store, Unpacked, Walk, _require

LANES = 16  # rows side by side: the float32 lanes of a 512-bit vector


@dataclass(frozen=True)
class Slots(Level):
    """Every coordinate once below each parent, the fullest first: the one in slot s is ``crd[p * size + s]``.

    Rows with as many entries then lie side by side, so a kernel that takes several at once does nothing in vain.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Slots().pack(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 2]), 1, 3)
    >>> arrays["crd"], position
    (tensor([2, 1, 0]), tensor([1, 0, 0]))
    """

    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    walk: ClassVar[Walk | None] = Walk("p * size", "(p + 1) * size", "crd[at]", ordered=False)
    store: ClassVar[Store | None] = Store("p * size + slot[p * size + i]", counts="entries")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        counts = torch.bincount(parent * size + coord, minlength=parents * size)
        crd, slot = self._by_fullness(counts, parents, size)
        return {"crd": crd}, parent * size + slot[parent * size + coord], parents * size

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        crd, slot = self._by_fullness(counts, parents, size)
        return {"crd": crd.to(dtype), "slot": slot.to(dtype)}

    def _by_fullness(self, counts: Tensor, parents: int, size: int) -> tuple[Tensor, Tensor]:
        """The coordinate in each slot, and the slot of each coordinate."""
        crd = torch.argsort(counts.view(parents, size), dim=1, descending=True, stable=True)
        slot = torch.empty_like(crd).scatter_(1, crd, torch.arange(size, device=crd.device).expand_as(crd))
        return crd.view(-1), slot.view(-1)

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent = torch.arange(parents, device=device)[:, None].expand(parents, size).reshape(-1)
        return parent, arrays["crd"].long(), None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd = arrays["crd"]
        _require(crd.dtype == torch.int32, f"crd is {crd.dtype}, must be torch.int32")
        _require(tuple(crd.shape) == (parents * size,), f"crd is {tuple(crd.shape)}, must be {parents} x {size} long")
        every = torch.arange(size, dtype=crd.dtype, device=crd.device)
        whole = bool((crd.view(parents, size).sort(1).values == every).all())
        _require(whole, "crd must hold every coordinate once below each parent")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size


@dataclass(frozen=True)
class Lanes(Level):
    """Sixteen parents side by side: entry j below parent p is at ``(pos[p // 16] + j) * 16 + p % 16``.

    ``crd`` is one byte, so at most 254 coordinates; an unused place holds ``size``.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Lanes().pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), arrays["pos"].tolist(), arrays["crd"][:2].tolist(), arrays["crd"][16:18].tolist()
    ([0, 16, 1], [0, 2], [4, 2], [7, 8])
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    walk: ClassVar[Walk | None] = Walk(
        "pos[p / 16]", "pos[p / 16 + 1]", "crd[at]", at="q * 16 + p % 16", real="crd[at] < size", ordered=False
    )
    store: ClassVar[Store | None] = Store("(pos[p / 16] + rank) * 16 + p % 16", "crd[at] = i", "coordinates")

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        pos = torch.zeros(parents // LANES + 1, dtype=dtype)
        torch.cumsum(counts.view(-1, LANES).amax(1), 0, dtype=dtype, out=pos[1:])
        return {"pos": pos, "crd": torch.full((int(pos[-1]) * LANES,), size, dtype=torch.uint8)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        groups = parents // LANES
        step = _rank(parent)
        pos = torch.zeros(groups + 1, dtype=torch.int64, device=coord.device)
        need = torch.zeros_like(pos[1:]).scatter_reduce_(0, parent // LANES, step + 1, "amax")
        torch.cumsum(need, 0, out=pos[1:])
        position = (pos[parent // LANES] + step) * LANES + parent % LANES
        return {"pos": pos, "crd": _bytes(coord, position, int(pos[-1]) * LANES, size)}, position, int(pos[-1]) * LANES

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, crd = arrays["pos"].long(), arrays["crd"]
        steps = crd.numel() // LANES
        group = torch.repeat_interleave(torch.arange(parents // LANES, device=device), pos.diff(), output_size=steps)
        return _lanes(group), crd.long(), crd < size

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        pos, crd = arrays["pos"], arrays["crd"]
        _check_starts(pos, parents // LANES)
        _require(int(pos[-1]) * LANES == crd.numel(), f"pos ends at {int(pos[-1])}, must be {crd.numel()} / {LANES}")
        _check_bytes(crd, size)

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()


@dataclass(frozen=True)
class NearLanes(Level):
    """:class:`Lanes` in half the bytes, each coordinate told by its distance from the one before, from -1 on.

    Two steps of a lane share a byte, the first in its lower half, and every group has an even number of them. A half of
    1 to 14 is an entry so far ahead; 15 moves on and is none; 0 is an entry right after a 15, and else none.

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

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        rank = _rank(parent)
        before = torch.where(rank > 0, coord.roll(1), -1) if coord.numel() else coord
        ahead = coord - before
        moves = ahead // 15  # places that only move on; one less than 15 ahead needs none
        every = torch.cumsum(moves + 1, 0)
        first = torch.cummax(torch.where(rank == 0, every - moves - 1, 0), 0).values if every.numel() else every
        step = every - first - 1
        need = torch.zeros(parents // LANES, dtype=torch.int64, device=coord.device)
        need.scatter_reduce_(0, parent // LANES, step + 1, "amax")
        pos = torch.zeros(need.numel() + 1, dtype=torch.int64, device=coord.device)
        torch.cumsum((need + 1) // 2 * 2, 0, out=pos[1:])
        position = (pos[parent // LANES] + step) * LANES + parent % LANES
        codes = torch.zeros(int(pos[-1]) * LANES, dtype=torch.uint8, device=coord.device)
        codes[position] = (ahead - 15 * moves).to(torch.uint8)
        of = torch.repeat_interleave(torch.arange(moves.numel(), device=coord.device), moves)
        codes[position[of] - (_rank(of) + 1) * LANES] = 15
        return {"pos": pos, "crd": paired(codes)}, position, codes.numel()

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, codes = arrays["pos"].long(), halves(arrays["crd"])
        steps = codes.numel() // LANES
        group = torch.repeat_interleave(torch.arange(parents // LANES, device=device), pos.diff(), output_size=steps)
        ends = F.pad(codes.view(-1, LANES).long().cumsum(0), (0, 0, 1, 0))
        return _lanes(group), (ends[1:] - ends[pos[group]] - 1).view(-1), near_entries(arrays["crd"])

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        pos, crd = arrays["pos"], arrays["crd"]
        _check_starts(pos, parents // LANES)
        _require(not bool((pos % 2).any()), "pos has an odd number, every group must have an even number of steps")
        _check_bytes(crd, 255)
        _require(
            int(pos[-1]) * LANES == 2 * crd.numel(), f"pos ends at {int(pos[-1])}, must be {crd.numel()} * 2 / {LANES}"
        )
        _, coord, _ = self.unpack(arrays, parents, size, crd.device)
        _require(not bool((coord >= size).any()), f"crd goes on to a coordinate outside 0 .. {size - 1}")
        last = halves(crd).view(-1, LANES)[pos[1:][pos.diff() > 0].long() - 1]
        _require(not bool((last == 15).any()), "crd moves on at the end of a group, where an entry must follow")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return 2 * arrays["crd"].numel()


@dataclass(frozen=True)
class FixedLanes(Level):
    """Sixteen parents side by side, ``width`` places each.

    Entry j below parent p is at ``(p // 16 * width + j) * 16 + p % 16``.

    The coordinates may be cut into ``parts`` of the same size, none of which has more than its share of the places.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = FixedLanes(2).pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), n
    ([0, 16, 1], 32)
    """

    width: int = 1
    parts: int = 1
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
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
        position = (parent // LANES * self.width + _rank(parent)) * LANES + parent % LANES
        crd = self._stored(_bytes(coord, position, parents * self.width, size))
        return {"crd": crd}, position, parents * self.width

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        group = torch.arange(parents // LANES * self.width, device=device) // self.width
        crd = self._codes(arrays["crd"], parents * self.width)
        return _lanes(group), crd.long(), crd < size

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd, places = arrays["crd"], parents * self.width
        self._check_length(crd, places, f"{parents} x {self.width}")
        _check_bytes(crd, 255)  # its type; the values below
        _check_bytes(self._codes(crd, places), size)
        parent, coord, valid = self.unpack(arrays, parents, size, crd.device)
        self._check_parts(parent[valid], coord[valid], size)

    def _stored(self, crd: Tensor) -> Tensor:
        """A byte for each place, as it is stored."""
        return crd

    def _codes(self, crd: Tensor, places: int) -> Tensor:
        """What is stored, as a byte for each place."""
        return crd

    def _check_length(self, crd: Tensor, places: int, said: str) -> None:
        _require(crd.numel() == places, f"crd has {crd.numel()} places, must have {said}")

    def _check_parts(self, parent: Tensor, coord: Tensor, size: int) -> None:
        """No part may hold more than its share: n of each m."""
        n, m = self.width // self.parts, size // self.parts
        most = int(torch.bincount(parent * self.parts + coord // m).max()) if parent.numel() else 0
        self._require_share(most <= n, most, n, m)

    def _require_share(self, fits: bool, most: int, n: int, m: int) -> None:
        _require(fits, f"a row keeps {most} of {m} columns, at most {n} of each {m} fit")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * self.width

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"width": self.width}


@dataclass(frozen=True)
class HalfLanes(FixedLanes):
    """:class:`FixedLanes` with two steps in a byte, the first in its lower half: at most 15 coordinates.

    Step q of lane l, counted over all groups, is in byte ``q // 2 * 16 + l`` of ``crd``.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = HalfLanes(2).pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), n, arrays["crd"].numel(), hex(arrays["crd"][0]), hex(arrays["crd"][1])
    ([0, 16, 1], 32, 16, '0x74', '0x82')
    """

    walk: ClassVar[Walk] = FixedLanes.walk._replace(
        coord="crd[q / 2 * 16 + p % 16] >> q % 2 * 4 & 15", real="(crd[q / 2 * 16 + p % 16] >> q % 2 * 4 & 15) < size"
    )
    # a half holds `size` before, so that this leaves the coordinate there
    store: ClassVar[Store | None] = Store(
        "(p / 16 * width + rank) * 16 + p % 16",
        "crd[(p / 16 * width + rank) / 2 * 16 + p % 16] ^= (i ^ size) << (p / 16 * width + rank) % 2 * 4",
        "coordinates",
    )

    def _stored(self, crd: Tensor) -> Tensor:
        return paired(crd)

    def _codes(self, crd: Tensor, places: int) -> Tensor:
        return halves(crd)[:places]

    def _check_length(self, crd: Tensor, places: int, said: str) -> None:
        want = -(-places // (2 * LANES)) * LANES
        _require(crd.numel() == want, f"crd has {crd.numel()} bytes, must have {want}: two of {said} places in each")


def paired(codes: Tensor) -> Tensor:
    """Put two steps of sixteen numbers below 16 into sixteen bytes, the first into the lower halves.

    Examples
    --------
    >>> import torch
    >>> hex(paired(torch.tensor([1] * 16 + [2] * 16, dtype=torch.uint8))[0])
    '0x21'
    """
    steps = codes.view(-1, LANES)
    steps = F.pad(steps, (0, 0, 0, steps.shape[0] % 2)).view(-1, 2, LANES)
    return (steps[:, 0] | steps[:, 1] << 4).view(-1)


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


def halves(crd: Tensor) -> Tensor:
    """Return the lower halves of sixteen bytes, their upper halves, those of the next sixteen, and so on.

    Examples
    --------
    >>> import torch
    >>> halves(torch.full((16,), 0x21, dtype=torch.uint8))[[0, 15, 16, 31]].tolist()
    [1, 1, 2, 2]
    """
    pairs = crd.view(-1, 1, LANES)
    return torch.cat([pairs & 15, pairs >> 4], 1).view(-1)


def _rank(parent: Tensor) -> Tensor:
    """How many entries of the same parent come before each; those of one parent come one after the other."""
    every = torch.arange(parent.numel(), device=parent.device)
    new = torch.ones_like(parent, dtype=torch.bool)
    new[1:] = parent[1:] != parent[:-1]
    return every - torch.cummax(torch.where(new, every, 0), 0).values if parent.numel() else every


def _bytes(coord: Tensor, position: Tensor, places: int, size: int) -> Tensor:
    crd = torch.full((places,), size, dtype=torch.uint8, device=coord.device)
    crd[position] = coord.to(torch.uint8)
    return crd


def _lanes(group: Tensor) -> Tensor:
    return (group[:, None] * LANES + torch.arange(LANES, device=group.device)).reshape(-1)


def _check_starts(pos: Tensor, groups: int) -> None:
    _require(pos.dtype == torch.int32 and pos.dim() == 1, f"pos is {pos.dtype}, must be torch.int32 of 1 dimension")
    _require(pos.numel() == groups + 1, f"pos has {pos.numel()} entries, must have {groups + 1} (groups + 1)")
    _require(int(pos[0]) == 0, f"pos starts at {int(pos[0])}, must start at 0")
    _require(not bool((pos[1:] < pos[:-1]).any()), "pos runs backwards, must never decrease")


def _check_bytes(crd: Tensor, size: int) -> None:
    _require(crd.dtype == torch.uint8 and crd.dim() == 1, f"crd is {crd.dtype}, must be torch.uint8 of 1 dimension")
    _require(not bool((crd > size).any()), f"crd has a coordinate outside 0 .. {size}")
