"""BSR: compressed rows of dense blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor

from gossamer.formats.base import Format


class BSR(Format):
    """Compressed rows of small dense blocks; the last blocks of a size that doesn't divide are padded with zeros.

    In levels: ``dense, compressed`` over the blocks, then ``dense, dense`` inside one. A block is a map from
    dimensions to levels (i -> i // b, i % b), not a level of its own.

    Parameters
    ----------
    block
        Rows and columns of a block.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.eye(4), gs.BSR((2, 2)))
    >>> t.values().shape
    torch.Size([2, 2, 2])
    """

    any_pattern: ClassVar[bool] = False

    def __init__(self, block: Sequence[int] = (4, 4), *, order: Sequence[int] | None = None) -> None:
        if len(block) != 2 or any(not isinstance(b, int) or b < 1 for b in block):
            raise ValueError(f"block={block!r} must be two positive integers, such as (4, 4)")
        self.block = (int(block[0]), int(block[1]))
        super().__init__("dense", "compressed", "dense", "dense", order=order)

    def __repr__(self) -> str:
        return f"BSR({self.block}{'' if self.order is None else f', order={self.order}'})"

    def _identity(self) -> tuple[object, ...]:
        return ("BSR", self.block, self.order)

    def groups(self, ndim: int) -> int:
        return 2

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        sizes = self.group_sizes(shape)
        outer = [-(-s // b) for s, b in zip(sizes, self.block, strict=True)]
        i, j = self.order or (0, 1)
        return (outer[i], outer[j], self.block[i], self.block[j])

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        i, j = self.order or (0, 1)
        bi, bj = self.block[i], self.block[j]
        return [coords[i] // bi, coords[j] // bj, coords[i] % bi, coords[j] % bj]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        i, j = self.order or (0, 1)
        first, second = coords[0] * self.block[i] + coords[2], coords[1] * self.block[j] + coords[3]
        return [first, second] if i == 0 else [second, first]

    def transposed(self) -> Format:
        """Return the format of the transpose: the same blocks, read the other way."""
        i, j = self.order or (0, 1)
        return BSR((self.block[1], self.block[0]), order=(1 - i, 1 - j))
