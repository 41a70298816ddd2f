"""BSR: compressed rows of dense blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.structure import INT32, Matrix, Structure


class BSR(Format):
    """Compressed rows of small dense blocks; blocks at the edges are padded with zeros if needed.

    In levels: ``dense, compressed`` over the blocks, then ``dense, dense`` inside one. Blocks are a map from dimensions
    to levels (i -> i // b, i % b), not a kind of level.

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

    any_pattern = False

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

    def pads(self, shape: Sequence[int]) -> bool:
        return any(size % block for size, block in zip(self.group_sizes(shape), self.block, strict=True))

    def matrix(self, structure: Structure) -> Matrix:
        """Compressed rows of the same entries, by arithmetic: row i of a row of blocks has row i of each of them.

        With ``order=(1, 0)`` rows and columns are exchanged, and the arrays describe the transpose.
        """
        rows, cols = self.group_sizes(structure.shape)
        i, j = self.order or (0, 1)
        bi, bj = self.block[i], self.block[j]
        pos, crd = structure.arrays["pos1"].long(), structure.arrays["crd1"].long()
        blocks = crd.numel()
        count = pos.diff()  # blocks in each row of blocks
        row_of = torch.repeat_interleave(torch.arange(count.numel(), device=crd.device), count, output_size=blocks)
        # where the entries of (block, i, j) go: after the rows of blocks before, the rows before, the blocks before
        nth, inner, across = torch.arange(blocks, device=crd.device), _steps(bi, crd), _steps(bj, crd)
        before = (pos[row_of] * bi + nth - pos[row_of])[:, None] + inner * count[row_of][:, None]
        target = (before[:, :, None] * bj + across).reshape(-1)
        index = torch.empty_like(target).index_copy(0, target, torch.arange(target.numel(), device=crd.device))
        columns = (crd[:, None] * bj + across)[index.div(bi * bj, rounding_mode="floor"), index % bj]
        starts = (pos[:-1, None] * bi + inner * count[:, None]).reshape(-1) * bj
        starts = torch.cat([starts, pos[-1:] * (bi * bj)])
        sizes = (rows, cols)
        if self.pads(structure.shape):
            starts, columns, index = _without_padding(starts, columns, index, sizes[i], sizes[j])
        if max(rows, cols, blocks * bi * bj) <= INT32:
            starts, columns = starts.int(), columns.int()
        return Matrix(starts, columns, rows, cols, i == 1, index)

    def transposed(self) -> Format:
        """Return the format of the transpose: the same blocks with rows and columns exchanged."""
        i, j = self.order or (0, 1)
        return BSR((self.block[1], self.block[0]), order=(1 - i, 1 - j))


def _steps(n: int, like: Tensor) -> Tensor:
    return torch.arange(n, device=like.device)


def _without_padding(pos: Tensor, crd: Tensor, index: Tensor, rows: int, cols: int) -> tuple[Tensor, Tensor, Tensor]:
    """Leave out the entries of compressed rows that lie below the last row or right of the last column."""
    if torch.compiler.is_compiling():  # a trace can't count the remaining entries: zeros inside the matrix stay
        return torch.cat([pos[:rows], pos[-1:]]), crd.clamp(max=cols - 1), index
    keep = crd < cols
    kept = torch.cat([keep.new_zeros(1, dtype=torch.long), torch.cumsum(keep, 0)])
    end = int(pos[rows])
    keep = keep[:end]
    return kept[pos[: rows + 1]], crd[:end][keep], index[:end][keep]
