"""The level of half lanes: fixed lanes with two places in a byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossamer.formats.levels.base import Store, Walk
from gossamer.formats.levels.fixed_lanes import FixedLanes
from gossamer.formats.levels.halves import halves, paired


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

    most: ClassVar[int] = 15
    lengths: ClassVar[dict[str, str]] = {"crd": "(parents * width + 31) / 32 * 16"}
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
