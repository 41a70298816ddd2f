"""The base class of levels: their arrays, how these are read and written, and the rules for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

KINDS: dict[str, type[Level]] = {}

Arrays = Mapping[str, Tensor]
Packed = tuple[dict[str, Tensor], Tensor, int]  # arrays, position of each entry, number of positions
Unpacked = tuple[Tensor, Tensor, Tensor | None]  # parent and coordinate of each position, which are real (None: all)

INDEX = (torch.int32, torch.int64)
BYTE = (torch.uint8,)


class Walk(NamedTuple):
    """How to iterate over the positions of parent ``p``, in expressions that the compiler reads.

    They may use ``p``, ``size``, the level's arrays, the integers of :meth:`Level.numbers`, and where it makes sense
    the counter ``q``, the coordinate ``i`` and the position ``at``.

    Examples
    --------
    >>> from gossamer.formats.levels import Compressed
    >>> Compressed.walk.begin, Compressed.walk.end, Compressed.walk.coord
    ('pos[p]', 'pos[p + 1]', 'crd[at]')
    """

    begin: str  # q runs from here
    end: str  # to here
    coord: str  # the coordinate of a position
    at: str = "q"  # the position that counter q stands for
    real: str = ""  # is it an entry? (empty: always). Where the walk is in order, the first that is not ends it
    locate: str = ""  # the position of coordinate i, for a level that has one for each
    ordered: bool = True  # do coordinates ascend, each once?
    kept: str = ""  # of a level with a place for every coordinate: is it stored? (All others hold 0: conversions ask.)


class Store(NamedTuple):
    """How sorted entries are stored, in the same language as :class:`Walk`; ``rank`` counts the earlier ones of ``p``.

    Examples
    --------
    >>> from gossamer.formats.levels import Compressed
    >>> Compressed.store
    Store(at='pos[p] + rank', write='crd[at] = i', counts='coordinates')
    """

    at: str  # the position of coordinate i below p
    write: str = ""  # what is written there
    counts: str = ""  # what prepare must know: how many "coordinates" a parent has, or "entries" a coordinate


@dataclass(frozen=True)
class Level:
    """One level of a stack. Each subclass stores the coordinates of a parent in its own way.

    Examples
    --------
    >>> from gossamer.formats.levels import Compressed
    >>> Compressed()
    Compressed(unique=True)
    >>> Compressed().arrays
    ('pos', 'crd')
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    #: The types that each array may have.
    types: ClassVar[Mapping[str, tuple[torch.dtype, ...]]] = {}
    #: How long each array is, in the words of :class:`Walk` and ``parents``.
    lengths: ClassVar[Mapping[str, str]] = {}
    #: Does the level have a position for every coordinate, so that it forms an axis of the values?
    full: ClassVar[bool] = False
    #: Does it store every coordinate below a parent as an entry, zeros among them?
    whole: ClassVar[bool] = False
    #: How the compiler walks it; None: not in place.
    walk: ClassVar[Walk | None] = None
    #: How the compiler stores entries in it; None: by ``pack``.
    store: ClassVar[Store | None] = None

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls  # so that a printed format can be read back

    def check_sizes(self, parents: int, size: int) -> None:
        """Raise ValueError if the level can't have this number of parents, or store this number of coordinates."""

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        """Store sorted entries: returns the arrays, the position of each entry, and the number of positions."""
        raise NotImplementedError

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        """Parent and coordinate of every position, and which positions are real (None: all)."""
        raise NotImplementedError

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        """Raise ValueError if the arrays break a rule that can't be derived from ``walk``."""

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        """Return how many positions the level has."""
        raise NotImplementedError

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        """Return the integers that ``walk`` and ``store`` name."""
        return {}

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Allocate the arrays (and others that ``store`` uses) for entries that have been counted."""
        return {}

    def stored(self, arrays: Arrays, parents: int, size: int) -> None:
        """Raise ValueError if the written arrays break a rule that the counts alone could not show."""

    @property
    def takes_all(self) -> bool:
        """Can it store any coordinates, below any number of parents?"""
        return type(self).check_sizes is Level.check_sizes

    @property
    def merges(self) -> bool:
        """Do entries with the same parent and coordinate share a position?"""
        return True

    @property
    def ordered(self) -> bool:
        """Are positions ordered by parent, and then by coordinate?"""
        return self.walk is None or (self.walk.ordered and self.walk.at == "q")


def require(condition: bool, message: str) -> None:
    """Raise ValueError unless a condition holds.

    Examples
    --------
    >>> require(True, "never said")
    """
    if not condition:
        raise ValueError(message)


def starts(parent: Tensor, coord: Tensor) -> Tensor:
    """Where a new (parent, coordinate) begins in sorted entries."""
    new = torch.ones_like(coord, dtype=torch.bool)
    new[1:] = (parent[1:] != parent[:-1]) | (coord[1:] != coord[:-1])
    return new


def rank(parent: Tensor, coord: Tensor) -> Tensor:
    """For each entry, how many coordinates of the same parent come before it; entries are sorted.

    Examples
    --------
    >>> import torch
    >>> rank(torch.tensor([0, 0, 0, 2]), torch.tensor([1, 1, 5, 0])).tolist()
    [0, 0, 1, 0]
    """
    number = torch.cumsum(starts(parent, coord), 0)
    new = torch.ones_like(parent, dtype=torch.bool)
    new[1:] = parent[1:] != parent[:-1]
    return number - torch.cummax(torch.where(new, number, 0), 0).values if parent.numel() else number
