"""Where entries go: the levels of a target, and how the keys of entries for it look."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from gossamer.compiler.convert.conversion import Cut
from gossamer.formats.levels import Level

INT32 = 2**31 - 1
C_INDEX = {torch.int32: "int", torch.int64: "long", torch.uint8: "unsigned char", torch.bool: "unsigned char"}


class Target(NamedTuple):
    """Where entries go: levels, their sizes, which part of which dimension each counts, and the dimensions' sizes."""

    stack: tuple[Level, ...]
    sizes: tuple[int, ...]
    cuts: tuple[Cut, ...]
    dims: tuple[int, ...]

    @property
    def needed(self) -> int:
        """How many of the levels need entries in order: dense ones at the end find their places without."""
        last = len(self.stack)
        while last and self.stack[last - 1].full and not self.stack[last - 1].arrays:
            last -= 1
        return last


class Layout(NamedTuple):
    """How keys for a target look: where the bits of each level begin, how many they are, and the type of a key."""

    target: Target
    shifts: tuple[int, ...]
    bits: tuple[int, ...]
    key: str
    dtype: torch.dtype

    @classmethod
    @functools.lru_cache(maxsize=512)
    def of(cls, target: Target) -> Layout | None:
        """Return the layout of keys for a target; None if they don't fit into an integer.

        Examples
        --------
        >>> from gossamer.formats.levels import Compressed, Dense
        >>> Layout.of(Target((Dense(), Compressed()), (3, 100), (Cut(0), Cut(1)), (3, 100))).shifts
        (7, 0)
        """
        bits = tuple(max(size - 1, 0).bit_length() for size in target.sizes)
        if sum(bits) > 63:
            return None
        shifts = tuple(sum(bits[n + 1 :]) for n in range(len(bits)))
        return cls(target, shifts, bits, *(("int", torch.int32) if sum(bits) < 32 else ("long", torch.int64)))

    @property
    def integers(self) -> dict[str, int]:
        """The integers of a target that nests name: where the bits of each level begin, and the sizes."""
        masks = [(1 << bits) - 1 for bits in self.bits]
        levels = {"shift": self.shifts, "field": masks, "size": self.target.sizes}.items()
        named = {f"B.{name}{m}": value for name, values in levels for m, value in enumerate(values)}
        return named | {f"B.dim{d}": size for d, size in enumerate(self.target.dims)}
