"""The level of lanes: sixteen parents interleaved, each with as many places as the fullest of them needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import BYTE, Arrays, Level, Packed, Store, Unpacked, Walk, rank, require

LANES = 16  # rows side by side: the float32 lanes of a 512-bit vector


@dataclass(frozen=True)
class Lanes(Level):
    """Sixteen parents interleaved: entry j of parent p is at ``(pos[p // 16] + j) * 16 + p % 16``.

    ``crd`` is one byte, so there are at most 254 coordinates; unused places are ``size``.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Lanes().pack(torch.tensor([0, 0, 1]), torch.tensor([4, 7, 2]), 16, 8)
    >>> position.tolist(), arrays["pos"].tolist(), arrays["crd"][:2].tolist(), arrays["crd"][16:18].tolist()
    ([0, 16, 1], [0, 2], [4, 2], [7, 8])
    """

    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"pos": (torch.int32,), "crd": BYTE}
    lengths: ClassVar[dict[str, str]] = {"pos": "parents / 16 + 1", "crd": "pos[parents / 16] * 16"}
    walk: ClassVar[Walk | None] = Walk(
        "pos[p / 16]", "pos[p / 16 + 1]", "crd[at]", at="q * 16 + p % 16", real="crd[at] < size", ordered=False
    )
    store: ClassVar[Store | None] = Store("(pos[p / 16] + rank) * 16 + p % 16", "crd[at] = i", "coordinates")

    def check_sizes(self, parents: int, size: int) -> None:
        require_lanes(self, parents, size, 254)

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        pos = torch.zeros(parents // LANES + 1, dtype=dtype)
        torch.cumsum(counts.view(-1, LANES).amax(1), 0, dtype=dtype, out=pos[1:])
        return {"pos": pos, "crd": torch.full((int(pos[-1]) * LANES,), size, dtype=torch.uint8)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        groups = parents // LANES
        step = rank(parent, coord)
        pos = torch.zeros(groups + 1, dtype=torch.int64, device=coord.device)
        need = torch.zeros_like(pos[1:]).scatter_reduce_(0, parent // LANES, step + 1, "amax")
        torch.cumsum(need, 0, out=pos[1:])
        position = (pos[parent // LANES] + step) * LANES + parent % LANES
        return (
            {"pos": pos, "crd": bytes_of(coord, position, int(pos[-1]) * LANES, size)},
            position,
            int(pos[-1]) * LANES,
        )

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, crd = arrays["pos"].long(), arrays["crd"]
        steps = crd.numel() // LANES
        group = torch.repeat_interleave(torch.arange(parents // LANES, device=device), pos.diff(), output_size=steps)
        return lanes_of(group), crd.long(), crd < size

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        check_bytes(arrays["crd"], size)

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()


def require_lanes(level: Level, parents: int, size: int, most: int) -> None:
    """Raise ValueError unless parents come in groups of sixteen, and a coordinate fits into its bits."""
    name = type(level).__name__
    require(parents % LANES == 0, f"{name} takes parents in groups of {LANES}, there are {parents}")
    require(size <= most, f"{name} has bits for {most} coordinates, not for {size}")


def bytes_of(coord: Tensor, position: Tensor, places: int, size: int) -> Tensor:
    """A byte for each place: the coordinate there, or ``size`` where there is none."""
    crd = torch.full((places,), size, dtype=torch.uint8, device=coord.device)
    crd[position] = coord.to(torch.uint8)
    return crd


def lanes_of(group: Tensor) -> Tensor:
    """The sixteen parents of each group, one after the other."""
    return (group[:, None] * LANES + torch.arange(LANES, device=group.device)).reshape(-1)


def check_bytes(crd: Tensor, size: int) -> None:
    """Raise ValueError if a byte is neither a coordinate nor ``size``, the mark of an unused place."""
    require(not bool((crd > size).any()), f"crd has a coordinate outside 0 .. {size}")
