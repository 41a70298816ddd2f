"""What pack_ chooses from: formats in the order in which the CPU kernels read them.

All are one stack of levels over a map of blocks and tiles: ``dense`` blocks of rows, ``dense`` tiles of columns, the
rows of a block in slots, and sixteen of them side by side. They differ in what they promise of the pattern, and so in
which kernel may read them. ``src/gossamer/native/cpu/rows.h`` says why they look like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb

import torch
from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.lanes import LANES, Lanes, Slots

_TILE = 128  # columns: the first-level cache holds the activations of 64 tokens
_BLOCK = 384  # rows, at most: the second-level cache holds their sums for 64 tokens
_WINDOW = 32  # columns: what one permute of AVX-512 can look up


class PackedRows(Format):
    """Base of the packed formats: a matrix in blocks of rows and tiles of columns, sixteen rows side by side."""

    ordered = False

    def __init__(self, tile: int = _TILE, window: int = 0, per: int = 0) -> None:
        self.tile, self.window, self.per = tile, window, per
        super().__init__("dense", "dense", Slots(sort=not per), Lanes(window, per))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def groups(self, ndim: int) -> int:
        return 2

    def block(self, rows: int) -> int:
        """Rows of a block: as many blocks as needed, all of about one size, a multiple of 16.

        Examples
        --------
        >>> import gossamer as gs
        >>> [gs.formats.PackedCSR().block(rows) for rows in (10, 384, 768, 1000)]
        [16, 384, 384, 336]
        """
        blocks = max(-(-rows // _BLOCK), 1)
        return max(-(-rows // (blocks * LANES)) * LANES, LANES)

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, cols = self.group_sizes(shape)
        block = self.block(rows)
        return (-(-rows // block), -(-cols // self.tile), block, self.tile)

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = coords
        block = self.block(self.group_sizes(shape)[0])
        return [row // block, col // self.tile, row % block, col % self.tile]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        block = self.block(self.group_sizes(shape)[0])
        return [coords[0] * block + coords[2], coords[1] * self.tile + coords[3]]


class PackedCSR(PackedRows):
    """Any pattern, in the order of the CPU kernels: about 5.4 bytes a value at 90 % sparsity.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(32, 64), "90%", format=gs.formats.PackedCSR())
    >>> torch.nn.functional.linear(torch.randn(4, 64), w).shape
    torch.Size([4, 32])
    """


class Condensed(PackedRows):
    """Constant fan-in, with ablated rows left out: SRigL's layer. Rows without a value take no step of any kernel.

    The kernels read it as they read :class:`PackedCSR`: what counts for them is how many values a row keeps in a tile
    of 128 columns, which a constant fan-in leaves open.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.randn(32, 64), "fan-in 90%", format=gs.formats.Condensed()).nnz
    192
    """


class PackedNM(PackedRows):
    """At most n of each m columns stay, for n:m patterns. Refuses a tensor that keeps more.

    Parameters
    ----------
    n, m
        As in :class:`gossamer.NM`; m at most 254.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.randn(16, 64), "2:4", format=gs.formats.PackedNM(2, 4)).values().numel()
    512
    """

    any_pattern = False

    def __init__(self, n: int, m: int) -> None:
        if type(n) is not int or type(m) is not int or not 1 <= n <= m <= 254:
            raise ValueError(f"{type(self).__name__} needs integers 1 <= n <= m <= 254, not n={n!r}, m={m!r}")
        self.n, self.m = n, m
        blocks = _WINDOW // m  # blocks of m in a window; none: the columns of a tile are looked up as in any pattern
        span = max(blocks, 1) * m
        super().__init__(max(_TILE // span, 1) * span, span if blocks else 0, n * blocks)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.n}, {self.m})"

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = coords
        if row.numel() and not torch.compiler.is_compiling():
            rows, cols = self.group_sizes(shape)
            most = int(torch.bincount(row * -(-cols // self.m) + col // self.m).max())
            if most > self.n:
                raise ValueError(f"{self} holds at most {self.n} of each {self.m} columns, but a row keeps {most}")
        return super().to_levels(coords, shape)


class PackedGroupedNM(PackedNM):
    """STen's grouped n:m. For these kernels what matters is n:m: the groups cost nothing and gain nothing.

    A row's patterns are read one after the other with its sum in registers; the order of lines that lets STen keep
    activations in registers instead would send every sum through memory, at one load and one store for n
    multiplications.

    Parameters
    ----------
    n, m, g
        As in :class:`gossamer.GroupedNM`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 64), "1:4:g8", format=gs.formats.PackedGroupedNM(1, 4, 8))
    >>> w.format, w.nnz
    (PackedGroupedNM(1, 4, 8), 1024)
    """

    def __init__(self, n: int, m: int, g: int) -> None:
        super().__init__(n, m)
        if type(g) is not int or g < 1:
            raise ValueError(f"g={g!r} must be a positive integer: how many rows of a chunk share a pattern")
        self.g = g

    def __repr__(self) -> str:
        return f"PackedGroupedNM({self.n}, {self.m}, {self.g})"

    @property
    def chunk(self) -> int:
        """Rows of a chunk, in which each of the C(m, n) patterns is used g times."""
        return comb(self.m, self.n) * self.g
