"""The level of slots: every coordinate once, the fullest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, Packed, Store, Unpacked, Walk, require


@dataclass(frozen=True)
class Slots(Level):
    """Every coordinate once below each parent, the fullest first: the one in slot s is ``crd[p * size + s]``.

    Rows of equal length are then neighbours, so a kernel that processes several at once wastes no work.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Slots().pack(torch.tensor([0, 0, 0]), torch.tensor([1, 2, 2]), 1, 3)
    >>> arrays["crd"], position
    (tensor([2, 1, 0]), tensor([1, 0, 0]))
    """

    whole: ClassVar[bool] = True
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"crd": (torch.int32,)}
    lengths: ClassVar[dict[str, str]] = {"crd": "parents * size"}
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
        every = torch.arange(size, dtype=crd.dtype, device=crd.device)
        whole = bool((crd.view(parents, size).sort(1).values == every).all())
        require(whole, "crd must hold every coordinate once below each parent")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size
