"""The levels of the packed formats: rows sorted by how full they are, and sixteen of them side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels import Arrays, Level, Packed, Unpacked, _require

LANES = 16  # rows side by side: the float32 lanes of a 512-bit vector


@dataclass(frozen=True)
class Slots(Level):
    """Every coordinate once below each parent, the fullest first: the one in slot s is ``crd[p * size + s]``.

    Rows with as many entries then lie side by side, so a kernel that takes several at once does nothing in vain.
    ``sort=False`` leaves them in their own order.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Slots().pack(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 2]), 1, 3)
    >>> arrays["crd"], position
    (tensor([2, 1, 0]), tensor([1, 0, 0]))
    """

    sort: bool = True
    arrays: ClassVar[tuple[str, ...]] = ("crd",)

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        counts = torch.bincount(parent * size + coord, minlength=parents * size).view(parents, size)
        if self.sort:
            crd = torch.argsort(counts, dim=1, descending=True, stable=True)
        else:
            crd = torch.arange(size, device=coord.device).expand(parents, size).contiguous()
        slot = torch.empty_like(crd).scatter_(1, crd, torch.arange(size, device=coord.device).expand_as(crd))
        return {"crd": crd.view(-1)}, parent * size + slot.view(-1)[parent * size + coord], parents * size

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent = torch.arange(parents, device=device)[:, None].expand(parents, size).reshape(-1)
        return parent, arrays["crd"].long(), None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd = arrays["crd"]
        _require(crd.dtype == torch.int32, f"crd is {crd.dtype}, must be torch.int32")
        _require(tuple(crd.shape) == (parents * size,), f"crd is {tuple(crd.shape)}, must be {parents} x {size} long")
        every = torch.arange(size, dtype=crd.dtype, device=crd.device)
        given = crd.view(parents, size)
        given = given.sort(1).values if self.sort else given
        promise = "hold every coordinate once" if self.sort else "be in order"
        _require(bool((given == every).all()), f"crd must {promise} below each parent")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size


@dataclass(frozen=True)
class Lanes(Level):
    """Sixteen parents side by side: entry j below parent p is at ``(pos[p // 16] + j) * 16 + p % 16``.

    ``crd`` is one byte, so at most 254 coordinates; an unused place holds ``size``. With a ``window`` each
    ``window`` coordinates have ``per`` steps of their own (n:m: the step alone says which window it is).

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Lanes().pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), arrays["pos"].tolist(), arrays["crd"][:2].tolist(), arrays["crd"][16:18].tolist()
    ([0, 16, 1], [0, 2], [4, 2], [7, 8])
    """

    window: int = 0
    per: int = 0
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        groups = parents // LANES
        step = self._steps(parent, coord)
        need = step.new_zeros(groups).scatter_reduce_(0, parent // LANES, step + 1, "amax")
        if self.per:
            need = -(-need // self.per) * self.per
        pos = torch.zeros(groups + 1, dtype=torch.int64, device=coord.device)
        torch.cumsum(need, 0, out=pos[1:])
        places = int(pos[-1]) * LANES
        position = (pos[parent // LANES] + step) * LANES + parent % LANES
        crd = torch.full((places,), size, dtype=torch.uint8, device=coord.device)
        crd[position] = coord.to(torch.uint8)
        return {"pos": pos, "crd": crd}, position, places

    def _steps(self, parent: Tensor, coord: Tensor) -> Tensor:
        """Step of each entry: its rank below its parent, or in its window."""
        if not coord.numel():
            return coord
        # below one parent entries come one after the other, but parents may come in any order
        part = parent if not self.per else parent * (256 // self.window + 1) + coord // self.window
        every = torch.arange(coord.numel(), device=coord.device)
        new = torch.ones_like(coord, dtype=torch.bool)
        new[1:] = part[1:] != part[:-1]
        rank = every - torch.cummax(torch.where(new, every, 0), 0).values
        if not self.per:
            return rank
        if int(rank.max()) >= self.per:
            raise ValueError(f"a row has {int(rank.max()) + 1} values in {self.window} columns, at most {self.per} fit")
        return coord // self.window * self.per + rank

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, crd = arrays["pos"].long(), arrays["crd"]
        steps = crd.numel() // LANES
        group = torch.repeat_interleave(torch.arange(parents // LANES, device=device), pos.diff(), output_size=steps)
        parent = group[:, None] * LANES + torch.arange(LANES, device=device)
        return parent.reshape(-1), crd.long(), crd < size

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        pos, crd = arrays["pos"], arrays["crd"]
        _require(pos.dtype == torch.int32 and pos.dim() == 1, f"pos is {pos.dtype}, must be torch.int32 of 1 dimension")
        _require(crd.dtype == torch.uint8 and crd.dim() == 1, f"crd is {crd.dtype}, must be torch.uint8 of 1 dimension")
        groups = parents // LANES
        _require(pos.numel() == groups + 1, f"pos has {pos.numel()} entries, must have {groups + 1} (groups + 1)")
        _require(crd.numel() % LANES == 0, f"crd has {crd.numel()} places, must be a multiple of {LANES}")
        _require(int(pos[0]) == 0, f"pos starts at {int(pos[0])}, must start at 0")
        _require(int(pos[-1]) == crd.numel() // LANES, f"pos ends at {int(pos[-1])}, must be {crd.numel() // LANES}")
        _require(not bool((pos[1:] < pos[:-1]).any()), "pos runs backwards, must never decrease")
        _require(not bool((crd > size).any()), f"crd has a coordinate outside 0 .. {size}")
        if self.per:
            self._check_windows(pos, crd, size)

    def _check_windows(self, pos: Tensor, crd: Tensor, size: int) -> None:
        first = torch.repeat_interleave(pos[:-1].long(), pos.diff().long(), output_size=crd.numel() // LANES)
        window = (torch.arange(first.numel(), device=crd.device) - first) // self.per
        good = (crd.view(-1, LANES).long() // self.window == window[:, None]) | (crd.view(-1, LANES) == size)
        _require(bool(good.all()), f"crd has a coordinate outside the window of {self.window} that its step belongs to")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()
