"""The compressed level: only coordinates that occur."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import INDEX, Arrays, Level, Packed, Store, Unpacked, Walk, starts


@dataclass(frozen=True)
class Compressed(Level):
    """Only coordinates that occur: those of parent p are ``crd[pos[p] : pos[p + 1]]``, ascending.

    With ``unique=False`` a coordinate may repeat (the first level of COO, where one row has many entries).

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Compressed().pack(torch.tensor([0, 0, 2]), torch.tensor([1, 3, 0]), 3, 4)
    >>> arrays["pos"], arrays["crd"], n
    (tensor([0, 2, 2, 3]), tensor([1, 3, 0]), 3)
    """

    unique: bool = True
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": INDEX, "crd": INDEX}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents + 1", "crd": "pos[parents]"}
    walk: ClassVar[Walk | None] = Walk("pos[p]", "pos[p + 1]", "crd[at]")
    store: ClassVar[Store | None] = Store("pos[p] + rank", "crd[at] = i", "coordinates")

    @property
    def merges(self) -> bool:
        return self.unique

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        pos = torch.zeros(parents + 1, dtype=dtype)
        torch.cumsum(counts, 0, dtype=dtype, out=pos[1:])
        return {"pos": pos, "crd": torch.empty(int(pos[-1]), dtype=dtype)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        position = torch.arange(coord.numel(), device=coord.device)
        if self.unique:
            new = starts(parent, coord)
            if not bool(new.all()):  # most often this is the last level, where every entry has its own coordinate
                position, parent, coord = torch.cumsum(new, 0) - 1, parent[new], coord[new]
        pos = torch.zeros(parents + 1, dtype=torch.int64, device=coord.device)
        torch.cumsum(torch.bincount(parent, minlength=parents), 0, out=pos[1:])
        return {"pos": pos, "crd": coord}, position, coord.numel()

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, crd = arrays["pos"], arrays["crd"]
        every = torch.arange(parents, device=crd.device)
        return torch.repeat_interleave(every, pos.diff(), output_size=crd.numel()), crd.long(), None

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()
