"""Packed bitmap: any pattern, a bit for each position and the values that are kept, for tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.compressed import CSR
from gossamer.formats.levels.pieces import TILE, WIDTH, Pieces


class PackedBitmap(Format):
    """Any set of positions, for a GPU and few tokens: codes of four columns each, and the kept values.

    In levels: ``dense`` strips of 16 rows, and in each the :class:`~gossamer.formats.levels.Pieces` of its columns. At
    half precision and 50, 60, 70, 80 and 90 % it takes 0.68, 0.57, 0.46, 0.35 and 0.26 of the bytes of a dense tensor:
    1/16 for codes, 16 bits for most groups of four columns with one value, a word of two values for those with two, and
    48 or 64 bits for more.
    Rows are padded to 16, columns to 128.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(128, 256).half(), "50%", format=gs.formats.PackedBitmap())
    >>> w.nnz, 0.64 < w.nbytes / (128 * 256 * 2) < 0.7
    (16384, True)
    """

    ordered = False

    def __init__(self) -> None:
        super().__init__("dense", Pieces())

    def groups(self, ndim: int) -> int:
        return 2

    def general(self) -> Format:
        return CSR()

    def _sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        """Strips of rows, and columns with their padding."""
        rows, cols = self.group_sizes(shape)
        return -(-rows // TILE), -(-cols // WIDTH) * WIDTH

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
        return True
