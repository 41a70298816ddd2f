"""Packed V:N:M, for sparse tensor cores. 2:4 is the case m = 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.compressed import CSR
from gossamer.formats.levels.pairs import TILE, Pairs, step_of


class PackedVNM(Format):
    """Two of every m columns in each row, from four that v rows share; values and metadata in register order.

    In levels: ``dense`` tiles of 64 rows, and in each the :class:`~gossamer.formats.levels.Pairs` of its rows and
    columns. Every row has two places in every group, so a row that keeps fewer stores zeros. At half precision it takes
    (2/m)(1.125 + 1/v) of the bytes of a dense tensor, rows padded to 64 and columns to 16 m (32 m for 8
    bits).

    Refuses a tensor that keeps more than the pattern does.

    Parameters
    ----------
    v, n, m
        As in :class:`gossamer.VNM`; n is 2 and m at most 256.
    bits
        Bits of the values that sparse tensor cores multiply: 16, or 8 for e4m3 and int8, which have another order. A
        weight of 8 bits for activations of 16 bits has the order of 16.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(128, 256).half(), "64:2:8", format=gs.formats.PackedVNM(64, 2, 8))
    >>> w.nnz, w.nbytes / (128 * 256 * 2)
    (8192, 0.28515625)
    """

    any_pattern = False
    ordered = False

    def __init__(self, v: int | Literal["all"], n: int, m: int, bits: int = 16) -> None:
        if v != "all" and (type(v) is not int or v < 1):
            raise ValueError(f'v={v!r} must be a positive integer, or "all"')
        if type(n) is not int or n != 2:
            raise ValueError(f"n={n!r} must be 2: sparse tensor cores keep 2 of 4. Use PackedNM for other n")
        if type(m) is not int or not 4 <= m <= 256:
            raise ValueError(f"m={m!r} must be an integer in 4 .. 256: a column's position in its group is one byte")
        self.v: int | Literal["all"] = "all" if m == 4 else v  # 2:4 shares nothing, whatever v is
        if bits not in (8, 16):
            raise ValueError(f"bits={bits!r} must be 16 or 8: what sparse tensor cores multiply")
        self.n, self.m, self.bits = n, m, bits
        super().__init__("dense", Pairs(self.v, m, bits))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.v!r}, {self.n}, {self.m}{'' if self.bits == 16 else f', {self.bits}'})"

    def groups(self, ndim: int) -> int:
        return 2

    def general(self) -> Format:
        return CSR()

    def _sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        """Tiles of rows, and columns with their padding."""
        rows, cols = self.group_sizes(shape)
        step = step_of(self.bits) * self.m
        return -(-rows // TILE), -(-cols // step) * step

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        tiles, width = self._sizes(shape)
        return tiles, TILE * width

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = coords
        return [row // TILE, row % TILE * self._sizes(shape)[1] + col]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        tile, inside = coords
        width = max(self._sizes(shape)[1], 1)
        return [tile * TILE + inside // width, inside % width]

    def pads(self, shape: Sequence[int]) -> bool:
        rows, cols = self.group_sizes(shape)
        return (rows % TILE, cols) != (0, self._sizes(shape)[1])
