"""Which loop of a nest the lanes of a warp share, and how wide its loads are.

A turn of the outermost loop is computed by ``lanes`` neighbouring threads. They share one more loop: an index of the
result that is contiguous in memory ("strip": each lane has columns of its own), or a summed one ("sum": each lane has
terms of its own, and the lanes add up what they have at the end); or none, and each turn has one thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

THREADS = 256  # of a block
_LINE = 128  # bytes that memory moves at once
_WIDE = 16  # bytes of the widest load
_PIECE, _LONGEST = 32, 256  # entries of a piece: as many as take no more than a small part of the time of all
SLOTS = 64  # sums of pieces that are added up at once
_LINES = 4  # loads of a lane that cover a row which it keeps
_NARROW = 4  # columns below which lanes share the entries instead


class Mapping(NamedTuple):
    """How a nest is mapped to threads."""

    role: str = ""  # "strip", "sum" or ""
    var: str = ""  # the loop that the lanes share
    lanes: int = 1
    wide: int = 1  # neighbouring values of that loop that a lane loads at once
    unroll: int = 1  # turns of the innermost loop whose loads are under way together
    batch: str = ""  # one more loop over an index of the result that blocks share
    blocks: int = 4  # that should fit on a multiprocessor at once: the more, the fewer registers each has
    lines: int = 0  # loads that cover a whole row of a sum for each lane: then a row is kept in registers; 0: it isn't
    whole: bool = False  # do these loads end where the row ends?

    @property
    def units(self) -> int:
        """How many turns of the outermost loop a block computes."""
        return THREADS // self.lanes

    def tiles(self, size: int) -> int:
        """How many blocks it takes to cover a strip."""
        return -(-size // (self.lanes * self.wide)) if self.role == "strip" else 1

    def __str__(self) -> str:
        if not self.role:
            return "a thread for each turn of the outermost loop"
        loads = f", {self.wide} at once" if self.wide > 1 else ""
        what = "columns" if self.role == "strip" else "terms"
        return f"{self.lanes} lanes for each turn of the outermost loop share the {what} of {self.var!r}{loads}"


def strip(var: str, size: int, strides: Sequence[int], itemsize: int, skewed: bool) -> Mapping:
    """Share the columns of an index of this size; ``strides`` are those of all that is read and written along it.

    Many lanes hide the latency of random loads better than many loads of each, unless long rows make some lanes late.

    Examples
    --------
    >>> strip("j", 128, [128], 4, False)[2:5], strip("j", 33, [33], 4, True)[2:5]
    ((32, 4, 2), (32, 1, 4))
    """
    wide = widest(size, strides, itemsize)
    lanes = min(32, _power(-(-size // wide)))
    late = skewed and size * itemsize <= 2 * _LINE and itemsize > 2
    return Mapping("strip", var, lanes, wide, 4 if late else 2, blocks=6 if late else 8)


def dot(var: str, size: int, strides: Sequence[int], itemsize: int) -> Mapping:
    """Share the terms of a sum along a contiguous index: two to four loads for each lane.

    Examples
    --------
    >>> dot("d", 64, [64, 64], 4)[2:5]
    (4, 4, 4)
    """
    wide = widest(size, strides, itemsize)
    loads = -(-size // wide)
    lanes = min(_LINE // (wide * itemsize), max(4, _power(loads) // 4), 32)
    unroll = max(1, min(4, -(-loads // lanes)))
    return Mapping("sum", var, lanes, wide, unroll, blocks=8 if unroll < 3 else 4)


def rows(var: str, size: int, strides: Sequence[int], itemsize: int, most: int = 16) -> Mapping | None:
    """Share the terms of a sum, several entries at once; None if a row is too short for that, or too long.

    All entries of a row of the lead read the same row of a dense operand: lanes keep it in registers. Eight loads of
    each lane are under way at once: of 4 lanes or more, as few as have no more than four loads for a row. Measured on
    an H200, with 7 million entries of a stencil and 128 columns: 0.26 ms so, 0.29 to 0.35 with 16 lanes, 0.41 to 0.95
    with 32, 0.27 with 16 loads at once, and 0.57 without the row in registers. ``most`` bounds how many values a lane
    loads at once.

    Examples
    --------
    >>> rows("d", 128, [128, 128], 4)
    Mapping(role='sum', var='d', lanes=8, wide=4, unroll=2, batch='', blocks=3, lines=4, whole=True)
    """
    wide = min(widest(size, strides, itemsize), most)
    loads = -(-size // wide)
    lanes = 4
    while lanes < 32 and loads > _LINES * lanes:
        lanes *= 2
    lines = -(-loads // lanes)
    if loads < 4 or lines > _LINES:
        return None
    unroll = min(lanes, 8 // _power(lines))
    return Mapping("sum", var, lanes, wide, unroll, "", 3, lines, size == lanes * wide * lines)


def entries(var: str, length: float) -> Mapping:
    """Share the entries of a piece, of this length on average.

    Examples
    --------
    >>> entries("k", 20.0).lanes, entries("k", 400.0).lanes
    (4, 32)
    """
    return Mapping("sum", var, max(4, min(32, _power(int(min(length, 256.0)) // 8))), 1, 4)


def narrow(size: int) -> bool:
    """Are there too few columns for lanes to share?"""
    return size < _NARROW


def piece(length: float, line: int = 64) -> int:
    """How many entries a piece may have that lanes don't share, for rows of this length on average.

    The longest piece should not be the last to end. ``line`` is the number of bytes that each entry reads: the more,
    the longer the product takes, and the longer a piece may take. Short rows of about the same length are not cut:
    adding up their sums would cost more. Measured on an H200 with 2.6 million entries in power-law rows: with 32
    columns, 0.082 ms with pieces of 64 entries and 0.127 with 256; with 128 columns, 0.319 and 0.305.

    Examples
    --------
    >>> piece(10.0), piece(25.0), piece(400.0), piece(10.0, 128), piece(10.0, 4096)
    (32, 50, 32, 64, 256)
    """
    most = min(max(line // 2, _PIECE), _LONGEST)
    return max(most, int(2 * length)) if length <= _PIECE else most


def widest(size: int, strides: Sequence[int], itemsize: int) -> int:
    """How many neighbours can be loaded at once, from lines of these strides."""
    wide = _WIDE // itemsize
    while wide > 1 and any(number % wide for number in (size, *strides)):
        wide //= 2
    return wide


def _power(number: int) -> int:
    """The power of two from this number on."""
    return 1 << max(number - 1, 0).bit_length()
