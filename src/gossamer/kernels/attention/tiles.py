"""A mask as tiles of some rows and 64 columns: those that have an entry, with a bit for each position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.formats import Structure

WIDE = 64  # columns of a tile


class Tiles(NamedTuple):
    """Tiles by rows of tiles: where each row begins, the column of each tile, and a word of 64 bits for each row."""

    first: Tensor  # int32, one more than rows of tiles
    column: Tensor  # int32
    bits: Tensor  # int64, [tiles, rows of a tile]

    @property
    def number(self) -> int:
        """How many tiles have an entry."""
        return self.column.numel()


def tiles_of(structure: Structure, high: int) -> Tiles:
    """Return the tiles of a matrix's entries, with ``high`` rows each; built once, and kept with the structure.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> found = tiles_of(gs.from_dense(torch.eye(130), gs.CSR()).structure, 64)
    >>> found.first.tolist(), found.column.tolist(), found.bits[2, :3].tolist()
    ([0, 1, 2, 3], [0, 1, 2], [1, 2, 0])
    """
    found: Tiles = structure.cached(("attention tiles", high), lambda: _tiles(structure, high))
    return found


def _tiles(structure: Structure, high: int) -> Tiles:
    rows, columns = structure.shape
    across, down = -(-columns // WIDE), -(-rows // high)
    keys, _ = structure.entries()
    row, column = keys // max(columns, 1), keys % max(columns, 1)
    tile, inverse = torch.unique(row // high * across + column // WIDE, return_inverse=True)
    bits = torch.zeros(tile.numel() * high, dtype=torch.int64, device=keys.device)
    one = torch.ones_like(column)
    bits.index_add_(0, inverse * high + row % high, one << column % WIDE)  # the bits of a word are different ones
    first = torch.zeros(down + 1, dtype=torch.int32, device=keys.device)
    first[1:] = torch.bincount(tile // max(across, 1), minlength=down).cumsum(0)
    return Tiles(first, (tile % max(across, 1)).int(), bits.view(-1, high))
