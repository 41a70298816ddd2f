"""Packed tiles: any pattern, a bit for each position and the values that are kept, in the order of AMX."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.compressed import CSR
from gossamer.formats.levels.bits import WORD, Bits
from gossamer.formats.levels.lanes import LANES


class PackedTiles(Format):
    """Any set of positions, for bfloat16 on a CPU: one bit for each position, and the kept values.

    In levels: ``dense`` groups of sixteen rows, and in each the :class:`~gossamer.formats.levels.Bits` of its
    positions, two columns of sixteen rows after the other. In bfloat16 the bits take 1/16 of the bytes of a dense
    tensor, and the values their share. Rows are padded to 16 and columns to 2.

    Its kernels use AMX, or ``vdpbf16ps`` of AVX-512, and are for bfloat16; other types are multiplied by a dense copy.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(128, 256).bfloat16(), "50%", format=gs.formats.PackedTiles())
    >>> w.nnz, round(w.nbytes / (128 * 256 * 2), 2)
    (16384, 0.56)
    """

    ordered = False

    def __init__(self) -> None:
        super().__init__("dense", Bits())

    def groups(self, ndim: int) -> int:
        return 2

    def general(self) -> Format:
        return CSR()

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, cols = self.group_sizes(shape)
        return -(-rows // LANES), -(-cols // 2) * WORD

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = coords
        return [row // LANES, col // 2 * WORD + row % LANES * 2 + col % 2]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        group, inside = coords
        return [group * LANES + inside % WORD // 2, inside // WORD * 2 + inside % 2]
