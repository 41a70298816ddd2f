"""The packed formats, whose values are in the order in which the CPU kernels read them; pack_ chooses from them.

Each is a stack of levels with a map that divides rows and columns: sixteen rows are interleaved, and columns are in
tiles, with one byte per column index. ``src/gossamer/native/cpu/rows.h`` explains why.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import ClassVar

from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.compressed import CSR
from gossamer.formats.levels import LANES, FixedLanes, HalfLanes, Lanes, NearLanes, Slots

_TILE = 128  # columns: the activations of 64 tokens fit in the L1 cache
_BLOCK = 384  # rows, at most: their sums for 64 tokens fit in the L2 cache
_WINDOW = 32  # columns: what one permute of AVX-512 can look up in two registers
_NEAR = 15  # columns that half a byte can distinguish; one number marks a place without an entry


def block_of(rows: int) -> int:
    """Rows of a block. Blocks have about the same size, a multiple of 16.

    Examples
    --------
    >>> [block_of(rows) for rows in (10, 384, 768, 1000)]
    [16, 384, 384, 336]
    """
    blocks = max(-(-rows // _BLOCK), 1)
    return max(-(-rows // (blocks * LANES)) * LANES, LANES)


class PackedRows(Format):
    """Base class of the packed formats, which the native kernels read.

    With ``order=(1, 0)`` the packed rows are the columns of the tensor. This is for weights with the inputs first, as
    in the Conv1D of transformers, and for transposes without a copy.
    """

    #: Columns of a tile; of a window, and steps in one (0: the pattern is not regular).
    tile: int
    window: int = 0
    per: int = 0

    def groups(self, ndim: int) -> int:
        return 2

    def matrix_sizes(self, shape: Sequence[int]) -> tuple[int, int]:
        """Rows and columns of the matrix that is packed."""
        rows, cols = self.group_sizes(shape)
        return (rows, cols) if self.order is None else (cols, rows)

    def arguments(self) -> tuple[int, ...]:
        """The arguments of the format, without the order."""
        raise NotImplementedError

    def turned(self) -> PackedRows:
        """Return the same format with rows and columns exchanged.

        Examples
        --------
        >>> import gossamer as gs
        >>> gs.formats.PackedNM(2, 4).turned()
        PackedNM(2, 4, order=(1, 0))
        """
        return type(self)(*self.arguments(), order=(1, 0) if self.order is None else None)  # type: ignore[arg-type]

    def transposed(self) -> Format:
        """Return the format of the transpose: the same arrays with rows and columns exchanged."""
        return self.turned()

    def _turn(self, coords: list[Tensor]) -> list[Tensor]:
        return coords if self.order is None else [coords[1], coords[0]]

    def __repr__(self) -> str:
        order = [] if self.order is None else [f"order={self.order}"]
        return f"{type(self).__name__}({', '.join([*map(str, self.arguments()), *order])})"


class PackedCSR(PackedRows):
    """Any pattern, in the order of the CPU kernels: about 5.4 bytes per value at 90 % sparsity.

    In levels: ``dense`` blocks of rows and ``dense`` tiles of columns; in each, the rows sorted by length, the fullest
    first, and their columns, with sixteen rows interleaved.

    Parameters
    ----------
    tile
        Columns of a tile, at most 254. 128 is good for all cases; 240 is faster at 90 % sparsity or more with 16 tokens
        or more, and slower for one token.
    order
        ``(1, 0)`` packs the columns instead of the rows.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(32, 64), "90%", format=gs.formats.PackedCSR())
    >>> torch.nn.functional.linear(torch.randn(4, 64), w).shape
    torch.Size([4, 32])
    """

    def __init__(self, tile: int = _TILE, *, order: Sequence[int] | None = None) -> None:
        if type(tile) is not int or not 1 <= tile <= 254:
            raise ValueError(f"tile={tile!r} must be an integer in 1 .. 254")
        self.tile = tile
        super().__init__("dense", "dense", Slots(), NearLanes() if self.window else Lanes(), order=order)

    def arguments(self) -> tuple[int, ...]:
        return () if self.tile == _TILE else (self.tile,)

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, cols = self.matrix_sizes(shape)
        block = block_of(rows)
        return (-(-rows // block), -(-cols // self.tile), block, self.tile)

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = self._turn(coords)
        block = block_of(self.matrix_sizes(shape)[0])
        return [row // block, col // self.tile, row % block, col % self.tile]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        block = block_of(self.matrix_sizes(shape)[0])
        return self._turn([coords[0] * block + coords[2], coords[1] * self.tile + coords[3]])


class PackedNear(PackedCSR):
    """:class:`PackedCSR` for low sparsity: columns are delta-encoded, in half a byte.

    A weight at 50 % takes 0.58 of the bytes of dense instead of 0.64. With 16 tokens or more it is as fast; with fewer
    it takes up to a quarter longer. Columns that are 15 or more apart need an extra place for each 15, so at 80 %
    sparsity and more :class:`PackedCSR` is smaller and faster.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(768, 768), "50%", format=gs.formats.PackedNear())
    >>> round(w.nbytes / (4 * w.numel()), 2)
    0.58
    """

    window = 15


class Condensed(PackedCSR):
    """Constant fan-in without the ablated rows: SRigL's layer. Empty rows cost no time.

    The kernels are those of :class:`PackedCSR`: for them, the number of values of a row in a tile of 128 columns
    matters, which a constant fan-in doesn't determine.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.randn(32, 64), "fan-in 90%", format=gs.formats.Condensed()).nnz
    192
    """


class PackedNM(PackedRows):
    """At most n of every m columns, for n:m patterns. Refuses a tensor that keeps more.

    A value takes 4.5 bytes if m is at most 15, and otherwise 5. In levels: ``dense`` groups of sixteen rows, ``dense``
    windows of columns (the largest multiple of m up to 15, or else up to 32), ``dense`` rows of a group, and for each
    row of a window as many places as the pattern keeps there.

    Parameters
    ----------
    n, m
        As in :class:`gossamer.NM`; m at most 254.
    order
        ``(1, 0)`` packs the columns instead of the rows: n of every m rows are kept.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.randn(16, 48), "2:4", format=gs.formats.PackedNM(2, 4)).values().numel()
    384
    """

    any_pattern = False
    #: Columns of the largest window in which two places share a byte.
    near: ClassVar[int] = _NEAR

    def __init__(self, n: int, m: int, *, order: Sequence[int] | None = None) -> None:
        if type(n) is not int or type(m) is not int or not 1 <= n <= m <= 254:
            raise ValueError(f"{type(self).__name__} needs integers 1 <= n <= m <= 254, not n={n!r}, m={m!r}")
        self.n, self.m = n, m
        near = m <= self.near
        blocks = max((self.near if near else _WINDOW) // m, 1)
        self.tile = self.window = blocks * m
        self.per = blocks * n
        #: The number of windows is a multiple of this, so that the number of steps is even: two steps share a byte.
        self.together = 1 + (near and self.per % 2)
        lanes = HalfLanes(self.per, blocks) if near else FixedLanes(self.per, blocks)
        super().__init__("dense", "dense", "dense", lanes, order=order)

    def arguments(self) -> tuple[int, ...]:
        return (self.n, self.m)

    def general(self) -> Format:
        return CSR()

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        rows, cols = self.matrix_sizes(shape)
        block = block_of(rows)
        windows = -(-cols // (self.window * self.together)) * self.together
        return (-(-rows // block) * block // LANES, windows, LANES, self.window)

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        row, col = self._turn(coords)
        return [row // LANES, col // self.window, row % LANES, col % self.window]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        return self._turn([coords[0] * LANES + coords[2], coords[1] * self.window + coords[3]])


class PackedGroupedNM(PackedNM):
    """STen's grouped n:m. These kernels use only n:m, so the groups make no difference.

    The patterns of a row are read one after the other, with its sum in registers. STen's order keeps activations in
    registers instead; here this would need a load and a store of a sum for every n multiplications.

    Parameters
    ----------
    n, m, g
        As in :class:`gossamer.GroupedNM`.
    order
        ``(1, 0)`` packs the columns instead of the rows.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 64), "1:4:g8", format=gs.formats.PackedGroupedNM(1, 4, 8))
    >>> w.format, w.nnz
    (PackedGroupedNM(1, 4, 8), 1024)
    """

    def __init__(self, n: int, m: int, g: int, *, order: Sequence[int] | None = None) -> None:
        super().__init__(n, m, order=order)
        if type(g) is not int or g < 1:
            raise ValueError(f"g={g!r} must be a positive integer: how many rows of a chunk share a pattern")
        self.g = g

    def arguments(self) -> tuple[int, ...]:
        return (self.n, self.m, self.g)

    @property
    def chunk(self) -> int:
        """Rows of a chunk, in which each of the C(m, n) patterns is used g times."""
        return comb(self.m, self.n) * self.g


class EarlierNM(PackedNM):
    """n:m as in files of version 1: a byte for each column, for any m. It is read and converted, but never written."""

    near = 0
