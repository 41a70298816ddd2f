"""What pack_ chooses from: formats in the order in which the CPU kernels read them.

Each is a stack of levels over a map that cuts rows and columns: sixteen rows side by side, and columns in tiles, where
one byte says which. ``src/gossamer/native/cpu/rows.h`` says why they look like this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import ClassVar

from torch import Tensor

from gossamer.formats.base import Format
from gossamer.formats.compressed import CSR
from gossamer.formats.levels import LANES, FixedLanes, HalfLanes, Lanes, NearLanes, Slots

_TILE = 128  # columns: the first-level cache holds the activations of 64 tokens
_BLOCK = 384  # rows, at most: the second-level cache holds their sums for 64 tokens
_WINDOW = 32  # columns: what one permute of AVX-512 can look up in two registers
_NEAR = 15  # columns that half a byte can tell apart, with one number left for a place without an entry


def block_of(rows: int) -> int:
    """Rows of a block: as many blocks as needed, all of about one size, a multiple of 16.

    Examples
    --------
    >>> [block_of(rows) for rows in (10, 384, 768, 1000)]
    [16, 384, 384, 336]
    """
    blocks = max(-(-rows // _BLOCK), 1)
    return max(-(-rows // (blocks * LANES)) * LANES, LANES)


class PackedRows(Format):
    """Base of the packed formats: what the native kernels read.

    With ``order=(1, 0)`` the rows that are packed are the columns of the tensor: a weight that has its inputs first,
    as that of a Conv1D of transformers, or a transpose that moves no value.
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
        """What it was made with, less the order."""
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
        """Return the format of the transpose: the same rows, now called columns."""
        return self.turned()

    def _turn(self, coords: list[Tensor]) -> list[Tensor]:
        return coords if self.order is None else [coords[1], coords[0]]

    def __repr__(self) -> str:
        order = [] if self.order is None else [f"order={self.order}"]
        return f"{type(self).__name__}({', '.join([*map(str, self.arguments()), *order])})"


class PackedCSR(PackedRows):
    """Any pattern, in the order of the CPU kernels: about 5.4 bytes a value at 90 % sparsity.

    In levels: ``dense`` blocks of rows and ``dense`` tiles of columns, in one of them the rows in slots, the fullest
    first, and their columns sixteen rows side by side.

    Parameters
    ----------
    tile
        Columns of a tile, at most 254. 128 suits all; 240 is faster from 90 % sparsity and 16 tokens on, and slower for
        one token.
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
    """:class:`PackedCSR` for patterns that keep much: columns are delta-encoded, in half a byte.

    A weight at 50 % takes 0.58 of dense's bytes instead of 0.64, in the same time from 16 tokens on, and in up to a
    quarter more below. Columns that are 15 or more apart cost a place for each 15, so from 80 % sparsity on
    :class:`PackedCSR` is smaller, and faster.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(768, 768), "50%", format=gs.formats.PackedNear())
    >>> round(w.nbytes / (4 * w.numel()), 2)
    0.58
    """

    window = 15


class Condensed(PackedCSR):
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

    A value takes 4.5 bytes where m is at most 15, and 5 else. In levels: ``dense`` groups of sixteen rows, ``dense``
    windows of columns (as many times m as fit into 15, or else into 32), ``dense`` rows of a group, and as many places
    for each row of a window as the pattern keeps there.

    Parameters
    ----------
    n, m
        As in :class:`gossamer.NM`; m at most 254.
    order
        ``(1, 0)`` packs the columns instead of the rows: n of each m rows stay.

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
        #: Windows come in so many, for an even number of steps: two of them share a byte.
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
    """STen's grouped n:m. For these kernels what matters is n:m: the groups cost nothing and gain nothing.

    A row's patterns are read one after the other with its sum in registers; the order of lines that lets STen keep
    activations in registers instead would send every sum through memory, at one load and one store for n
    multiplications.

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
    """n:m as files of version 1 have it: a byte for each column, whatever m is. Read, and converted; never written."""

    near = 0
