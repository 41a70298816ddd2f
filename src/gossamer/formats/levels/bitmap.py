"""The bitmap level: a place for every coordinate, and a mask of those that are stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Packed, Store, Unpacked, Walk
from gossamer.formats.levels.dense import Dense


@dataclass(frozen=True)
class Bitmap(Dense):
    """Every coordinate has a place; ``mask`` marks those that are stored.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Bitmap().pack(torch.tensor([0, 0]), torch.tensor([0, 2]), 1, 4)
    >>> arrays["mask"]
    tensor([ True, False,  True, False])
    """

    whole: ClassVar[bool] = False
    arrays: ClassVar[tuple[str, ...]] = ("mask",)
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"mask": (torch.bool,)}
    lengths: ClassVar[dict[str, str]] = {"mask": "parents * size"}
    walk: ClassVar[Walk | None] = Walk(
        "p * size", "(p + 1) * size", "at - p * size", locate="p * size + i", kept="mask[at]"
    )
    store: ClassVar[Store | None] = Store("p * size + i", "mask[at] = 1")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        _, position, n = super().pack(parent, coord, parents, size)
        mask = torch.zeros(n, dtype=torch.bool, device=coord.device)
        mask[position] = True
        return {"mask": mask}, position, n

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"mask": torch.zeros(parents * size, dtype=torch.bool)}

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent, coord, _ = super().unpack(arrays, parents, size, device)
        return parent, coord, arrays["mask"].reshape(-1)
