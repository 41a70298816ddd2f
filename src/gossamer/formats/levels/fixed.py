"""The fixed level: the same number of places below each parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import INDEX, Arrays, Level, Packed, Store, Unpacked, Walk, require, starts


@dataclass(frozen=True)
class Fixed(Level):
    """The same number of places, ``width``, for each parent. Unused places are at the end, with coordinate -1.

    ``width=None`` uses the number of entries of the fullest parent.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Fixed().pack(torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0]), 2, 4)
    >>> arrays["crd"]
    tensor([[ 1,  3],
            [ 0, -1]])
    """

    width: int | None = None
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"crd": INDEX}
    walk: ClassVar[Walk | None] = Walk("p * width", "(p + 1) * width", "crd[at]", real="crd[at] >= 0")
    store: ClassVar[Store | None] = Store("p * width + rank", "crd[at] = i", "coordinates")

    def __post_init__(self) -> None:
        if self.width is not None and (type(self.width) is not int or self.width < 0):
            raise ValueError(
                f"width={self.width!r} must be a non-negative integer, or None for the width of the fullest parent"
            )

    @property
    def takes_all(self) -> bool:
        return self.width is None

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        new = starts(parent, coord)
        counts = torch.bincount(parent[new], minlength=parents)
        width = self._places(counts)
        first = torch.cumsum(counts, 0) - counts
        run = torch.cumsum(new, 0) - 1
        position = parent * width + run - first[parent]
        crd = torch.full((parents, width), -1, dtype=torch.int64, device=coord.device)
        crd.view(-1)[position] = coord
        return {"crd": crd}, position, crd.numel()

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"crd": torch.full((parents, self._places(counts)), -1, dtype=dtype)}

    def _places(self, counts: Tensor) -> int:
        need = int(counts.max()) if counts.numel() else 0
        width = need if self.width is None else self.width
        require(need <= width, f"a row needs {need} places, but the level has a width of {width}: use a wider one")
        return width

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        crd = arrays["crd"]
        every = torch.arange(crd.numel(), device=crd.device)
        return every // max(crd.shape[-1], 1), crd.reshape(-1).long(), crd.reshape(-1) >= 0

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd = arrays["crd"]
        require(crd.dim() == 2 and crd.shape[0] == parents, f"crd is {tuple(crd.shape)}, must be ({parents}, width)")
        require(self.width is None or crd.shape[1] == self.width, f"crd is {crd.shape[1]} wide, must be {self.width}")
        require(bool((crd >= -1).all()), f"crd has a coordinate outside -1 .. {size - 1}")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"width": arrays["crd"].shape[-1]}
