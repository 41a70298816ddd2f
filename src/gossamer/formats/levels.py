"""The language of levels: every format is a stack of these.

A tensor is stored as a tree. Level 0 holds the coordinates of its first (storage) dimension, level 1 those of the
second below each of them, and so on; a **position** is a node of one level, and the positions of the last level are
where the values lie. Each kind of level answers four questions, and knows nothing of the others:

``pack``
    sorted coordinates -> the arrays that store them, and the position of every entry;
``unpack``
    the arrays -> parent and coordinate of every position;
``check``
    are the arrays whole? Otherwise: which promise is broken;
``positions``
    how many positions the level has.

A new kind of level is one class with these four. This module imports nothing of ours.

With a fifth, the constant ``walk``, the compiler (:mod:`gossamer.compiler`) walks the arrays as they lie; without it,
a stack is repacked into compressed levels first, once for each structure. With ``store`` and ``prepare`` it also
writes them, when a tensor is converted; without, ``pack`` does.
"""

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


class Walk(NamedTuple):
    """How to walk the positions below parent ``p``, in expressions that the compiler reads.

    They may name ``p``, ``size``, the level's arrays, the integers of :meth:`Level.numbers`, and where it makes sense
    the counter ``q``, the coordinate ``i`` and the position ``at``.

    Examples
    --------
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
    """How sorted entries are stored, in the words of :class:`Walk`; ``rank`` is how many came before below ``p``.

    Examples
    --------
    >>> Compressed.store
    Store(at='pos[p] + rank', write='crd[at] = i', counts='coordinates')
    """

    at: str  # the position of coordinate i below p
    write: str = ""  # what is written there
    counts: str = ""  # what prepare must know: how many "coordinates" a parent has, or "entries" a coordinate


@dataclass(frozen=True)
class Level:
    """One level of a stack; subclasses store the coordinates below a parent in their own way.

    Examples
    --------
    >>> Compressed()
    Compressed(unique=True)
    >>> Compressed().arrays
    ('pos', 'crd')
    """

    arrays: ClassVar[tuple[str, ...]] = ()
    #: Does the level have a position for every coordinate, so that it forms an axis of the values?
    full: ClassVar[bool] = False
    #: How the compiler walks it; None: not in place.
    walk: ClassVar[Walk | None] = None
    #: How the compiler stores entries in it; None: by ``pack``.
    store: ClassVar[Store | None] = None

    def __init_subclass__(cls) -> None:
        KINDS[cls.__name__] = cls  # so that a printed format can be read back

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        """Store sorted entries: returns the arrays, the position of each entry, and the number of positions."""
        raise NotImplementedError

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        """Parent and coordinate of every position, and which positions are real (None: all)."""
        raise NotImplementedError

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        """Raise ValueError if the arrays break one of the level's promises."""

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        """Return how many positions the level has."""
        raise NotImplementedError

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        """Return the integers that ``walk`` and ``store`` name."""
        return {}

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the arrays (and others that ``store`` names) for entries that are counted and yet to be written."""
        return {}

    def stored(self, arrays: Arrays, parents: int, size: int) -> None:
        """Raise ValueError if what was written breaks a promise that counts alone could not show."""

    @property
    def merges(self) -> bool:
        """Do entries of the same coordinate below the same parent share a position?"""
        return True


@dataclass(frozen=True)
class Dense(Level):
    """Every coordinate is there: nothing is stored but the size.

    Examples
    --------
    >>> Dense().positions({}, parents=3, size=4)
    12
    """

    full: ClassVar[bool] = True
    walk: ClassVar[Walk | None] = Walk("p * size", "(p + 1) * size", "at - p * size", locate="p * size + i")
    store: ClassVar[Store | None] = Store("p * size + i")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        return {}, parent * size + coord, parents * size

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent = torch.arange(parents, device=device)[:, None].expand(parents, size)
        coord = torch.arange(size, device=device).expand(parents, size)
        return parent.reshape(-1), coord.reshape(-1), None

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents * size


@dataclass(frozen=True)
class Bitmap(Dense):
    """Every coordinate has a place, and a bit (``mask``) says which are stored.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Bitmap().pack(torch.tensor([0, 0]), torch.tensor([0, 2]), 1, 4)
    >>> arrays["mask"]
    tensor([ True, False,  True, False])
    """

    arrays: ClassVar[tuple[str, ...]] = ("mask",)
    walk: ClassVar[Walk | None] = Walk(
        "p * size", "(p + 1) * size", "at - p * size", locate="p * size + i", kept="mask[at]"
    )
    store: ClassVar[Store | None] = Store("p * size + i", "mask[at] = 1")

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        _, position, n = super().pack(parent, coord, parents, size)
        mask = torch.zeros(n, dtype=torch.bool, device=coord.device)
        mask[position] = True
        return {"mask": mask}, position, n

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"mask": torch.zeros(parents * size, dtype=torch.bool)}

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        parent, coord, _ = super().unpack(arrays, parents, size, device)
        return parent, coord, arrays["mask"].reshape(-1)

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        mask = arrays["mask"]
        _require(mask.dtype == torch.bool, f"mask is {mask.dtype}, must be torch.bool")
        _require(mask.dim() == 1, f"mask is {tuple(mask.shape)}, must have 1 dimension, or those of the values")
        _require(mask.numel() == parents * size, f"mask has {mask.numel()} bits, must have {parents} x {size}")


@dataclass(frozen=True)
class Compressed(Level):
    """Only the coordinates in use: those below parent p are ``crd[pos[p] : pos[p + 1]]``, ascending.

    With ``unique=False`` a coordinate may repeat (the first level of COO, where one row has many entries).

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Compressed().pack(torch.tensor([0, 0, 2]), torch.tensor([1, 3, 0]), 3, 4)
    >>> arrays["pos"], arrays["crd"], n
    (tensor([0, 2, 2, 3]), tensor([1, 3, 0]), 3)
    """

    unique: bool = True
    arrays: ClassVar[tuple[str, ...]] = ("pos", "crd")
    walk: ClassVar[Walk | None] = Walk("pos[p]", "pos[p + 1]", "crd[at]")
    store: ClassVar[Store | None] = Store("pos[p] + rank", "crd[at] = i", "coordinates")

    @property
    def merges(self) -> bool:
        return self.unique

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        pos = torch.zeros(parents + 1, dtype=dtype)
        torch.cumsum(counts, 0, dtype=dtype, out=pos[1:])
        return {"pos": pos, "crd": torch.empty(int(pos[-1]), dtype=dtype)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        position = torch.arange(coord.numel(), device=coord.device)
        if self.unique:
            new = _starts(parent, coord)
            if not bool(new.all()):  # most often this is the last level, where every entry has its own coordinate
                position, parent, coord = torch.cumsum(new, 0) - 1, parent[new], coord[new]
        pos = torch.zeros(parents + 1, dtype=torch.int64, device=coord.device)
        torch.cumsum(torch.bincount(parent, minlength=parents), 0, out=pos[1:])
        return {"pos": pos, "crd": coord}, position, coord.numel()

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        pos, crd = arrays["pos"], arrays["crd"]
        every = torch.arange(parents, device=crd.device)
        return torch.repeat_interleave(every, pos.diff(), output_size=crd.numel()), crd.long(), None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        self.check_bounds(arrays, parents, size)
        self._check_sorted(arrays["pos"], arrays["crd"])

    def check_bounds(self, arrays: Arrays, parents: int, size: int) -> None:
        """Check all but the order of the coordinates: what makes the arrays safe to walk."""
        pos, crd = _indices(arrays, "pos"), _indices(arrays, "crd")
        _require(pos.numel() == parents + 1, f"pos has {pos.numel()} entries, must have {parents + 1} (parents + 1)")
        _require(int(pos[0]) == 0, f"pos starts at {int(pos[0])}, must start at 0")
        _require(int(pos[-1]) == crd.numel(), f"pos ends at {int(pos[-1])}, must end at {crd.numel()} (length of crd)")
        _require(not bool((pos[1:] < pos[:-1]).any()), "pos runs backwards, must never decrease")
        _in_range(crd, size)

    def _check_sorted(self, pos: Tensor, crd: Tensor) -> None:
        if crd.numel() < 2:
            return
        broken = crd[1:] <= crd[:-1] if self.unique else crd[1:] < crd[:-1]
        starts = pos[1:-1].long()
        starts = starts[(starts > 0) & (starts < crd.numel())]
        broken[starts - 1] = False  # a step across two parents may go down
        _require(not bool(broken.any()), f"crd is not {'strictly ' if self.unique else ''}ascending below a parent")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()


@dataclass(frozen=True)
class Singleton(Level):
    """Exactly one coordinate below each parent: ``crd[p]`` (the second and later levels of COO).

    Examples
    --------
    >>> Singleton().arrays
    ('crd',)
    """

    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    walk: ClassVar[Walk | None] = Walk("p", "p + 1", "crd[at]")
    store: ClassVar[Store | None] = Store("p", "crd[at] = i", "coordinates")

    @property
    def merges(self) -> bool:
        return False

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        counts = counts if counts.stride(0) else counts[:1]  # one number for all of them
        self._check_counts(bool((counts == 1).all()))
        return {"crd": torch.empty(parents, dtype=dtype)}

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        self._check_counts(torch.equal(parent, torch.arange(parents, device=parent.device)))
        return {"crd": coord}, parent, parents

    def _check_counts(self, one_each: bool) -> None:
        advice = "put it below 'compressed-nonunique'"
        _require(one_each, f"a singleton level needs one entry below each parent: {advice}")

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        return torch.arange(parents, device=arrays["crd"].device), arrays["crd"].long(), None

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd = _indices(arrays, "crd")
        _require(crd.numel() == parents, f"crd has {crd.numel()} entries, must have {parents} (one a parent)")
        _in_range(crd, size)

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return parents


@dataclass(frozen=True)
class Fixed(Level):
    """The same number of places, ``width``, below each parent; unused ones hold coordinate -1, at the end.

    ``width=None`` takes what the fullest parent needs.

    Examples
    --------
    >>> import torch
    >>> arrays, position, n = Fixed().pack(torch.tensor([0, 0, 1]), torch.tensor([1, 3, 0]), 2, 4)
    >>> arrays["crd"]
    tensor([[ 1,  3],
            [ 0, -1]])
    """

    width: int | None = None
    arrays: ClassVar[tuple[str, ...]] = ("crd",)
    walk: ClassVar[Walk | None] = Walk("p * width", "(p + 1) * width", "crd[at]", real="crd[at] >= 0")
    store: ClassVar[Store | None] = Store("p * width + rank", "crd[at] = i", "coordinates")

    def __post_init__(self) -> None:
        if self.width is not None and (type(self.width) is not int or self.width < 0):
            raise ValueError(
                f"width={self.width!r} must be an integer from 0, or None for what the fullest parent needs"
            )

    def pack(self, parent: Tensor, coord: Tensor, parents: int, size: int) -> Packed:
        new = _starts(parent, coord)
        counts = torch.bincount(parent[new], minlength=parents)
        width = self._places(counts)
        first = torch.cumsum(counts, 0) - counts
        run = torch.cumsum(new, 0) - 1
        position = parent * width + run - first[parent]
        crd = torch.full((parents, width), -1, dtype=torch.int64, device=coord.device)
        crd.view(-1)[position] = coord
        return {"crd": crd}, position, crd.numel()

    def prepare(self, counts: Tensor, parents: int, size: int, dtype: torch.dtype) -> dict[str, Tensor]:
        return {"crd": torch.full((parents, self._places(counts)), -1, dtype=dtype)}

    def _places(self, counts: Tensor) -> int:
        need = int(counts.max()) if counts.numel() else 0
        width = need if self.width is None else self.width
        _require(need <= width, f"a row needs {need} places, but the level has a width of {width}: use a wider one")
        return width

    def unpack(self, arrays: Arrays, parents: int, size: int, device: torch.device) -> Unpacked:
        crd = arrays["crd"]
        every = torch.arange(crd.numel(), device=crd.device)
        return every // max(crd.shape[-1], 1), crd.reshape(-1).long(), crd.reshape(-1) >= 0

    def check(self, arrays: Arrays, parents: int, size: int) -> None:
        crd = arrays["crd"]
        _require(crd.dtype in (torch.int32, torch.int64), f"crd is {crd.dtype}, must be int32 or int64")
        _require(crd.dim() == 2 and crd.shape[0] == parents, f"crd is {tuple(crd.shape)}, must be ({parents}, width)")
        _require(self.width is None or crd.shape[1] == self.width, f"crd is {crd.shape[1]} wide, must be {self.width}")
        _require(bool(((crd >= -1) & (crd < size)).all()), f"crd has a coordinate outside -1 .. {size - 1}")
        left, right = crd[:, :-1], crd[:, 1:]
        good = (right == -1) | ((left >= 0) & (right > left))
        _require(bool(good.all()), "crd is not strictly ascending below a parent, with its -1 at the end")

    def positions(self, arrays: Arrays, parents: int, size: int) -> int:
        return arrays["crd"].numel()

    def numbers(self, arrays: Arrays) -> dict[str, int]:
        return {"width": arrays["crd"].shape[-1]}


NAMES: dict[str, Level] = {
    "dense": Dense(),
    "bitmap": Bitmap(),
    "compressed": Compressed(),
    "compressed-nonunique": Compressed(unique=False),
    "singleton": Singleton(),
    "fixed": Fixed(),
}


def as_level(level: str | Level) -> Level:
    """Turn a name such as ``"compressed"`` into its level.

    Examples
    --------
    >>> as_level("compressed")
    Compressed(unique=True)
    >>> as_level("squeezed")
    Traceback (most recent call last):
        ...
    ValueError: unknown level 'squeezed'; known are dense, bitmap, compressed, compressed-nonunique, singleton, fixed
    """
    if isinstance(level, Level):
        return level
    if not isinstance(level, str) or level not in NAMES:
        raise ValueError(f"unknown level {level!r}; known are {', '.join(NAMES)}")
    return NAMES[level]


def level_name(level: Level) -> str | Level:
    """Return the name that :func:`as_level` understands, or the level itself if it has none."""
    return next((name for name, known in NAMES.items() if known == level), level)


def _starts(parent: Tensor, coord: Tensor) -> Tensor:
    """Where a new (parent, coordinate) begins in sorted entries."""
    new = torch.ones_like(coord, dtype=torch.bool)
    new[1:] = (parent[1:] != parent[:-1]) | (coord[1:] != coord[:-1])
    return new


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _indices(arrays: Arrays, name: str) -> Tensor:
    array = arrays[name]
    _require(array.dtype in (torch.int32, torch.int64), f"{name} is {array.dtype}, must be int32 or int64")
    _require(array.dim() == 1, f"{name} has {array.dim()} dimensions, must have 1")
    return array


def _in_range(crd: Tensor, size: int) -> None:
    if crd.numel():
        low, high = int(crd.min()), int(crd.max())
        _require(low >= 0 and high < size, f"crd has coordinates {low} .. {high}, must lie in 0 .. {size - 1}")
