"""The singleton level: one coordinate below each parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels.base import INDEX, Arrays, Level, Packed, Store, Unpacked, Walk, require


@dataclass(frozen=True)
class Singleton(Level):
    """Exactly one coordinate below each parent: ``crd[p]`` (the second and later levels of COO).

    Examples
    --------
    >>> Singleton().arrays
    ('crd',)
    """

    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    types: ClassVar[dict[str, tuple[torch.dtype, ...]]] = {"crd": INDEX}
    lengths: ClassVar[dict[str, str]] = {"crd": "parents"}
    walk: ClassVar[Walk | None] = Walk("p", "p + 1", "crd[at]")
    store: ClassVar[Store | None] = Store("p", "crd[at] = i", "coordinates")

    @property
    def merges(self) -> bool:
        return False

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        counts = counts if counts.stride(0) else counts[:1]  # one number for all of them
        self._check_counts(bool((counts == 1).all()))
        return {"crd": torch.empty(parents, dtype=dtype)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        self._check_counts(torch.equal(parent, torch.arange(parents, device=parent.device)))
        return {"crd": coord}, parent, parents

    def _check_counts(self, one_each: bool) -> None:
        advice = "put it below 'compressed-nonunique'"
        require(one_each, f"a singleton level needs one entry below each parent: {advice}")

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        return torch.arange(parents, device=arrays["crd"].device), arrays["crd"].long(), None

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents
