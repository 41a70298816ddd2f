"""Format: how the kept values of a tensor are stored, as a stack of levels."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gossamer.formats.levels import KINDS, Level, Singleton, as_level, level_name

if TYPE_CHECKING:
    from gossamer.formats.structure import Matrix, Structure

_MAX_INT64 = 2**63 - 1


class Format:
    """A stack of levels, and the order in which they store the dimensions.

    Level ``l`` stores dimension ``order[l]``. If a tensor has more dimensions than the stack has levels, the trailing
    ones are flattened into the last level (a convolution's weight in CSR is a matrix of output channels by everything
    else). If it has fewer, leading dimensions of size 1 are added.

    Parameters
    ----------
    *levels
        Names (``"dense"``, ``"compressed"``, ``"compressed-nonunique"``, ``"singleton"``, ``"fixed"``, ``"bitmap"``)
        or :class:`~gossamer.formats.levels.Level` objects, outermost first.
    order
        A permutation of the dimensions; by default they keep their order.

    Examples
    --------
    >>> import gossamer as gs
    >>> gs.Format("dense", "compressed", order=(1, 0)) == gs.CSC()
    True
    """

    #: Can it store exactly any set of positions? (False: it stores whole blocks or fibres.)
    any_pattern: bool = True
    #: Does the class have its own map from dimensions to levels, beyond their order?
    own_map: ClassVar[bool] = False
    _known: ClassVar[dict[str, type[Format]]] = {}

    def __init__(self, *levels: str | Level, order: Sequence[int] | None = None) -> None:
        self.levels: tuple[Level, ...] = tuple(as_level(level) for level in levels)
        self.order: tuple[int, ...] | None = None if order is None else tuple(order)
        if not levels:
            raise ValueError("a format needs at least one level, such as Format('dense', 'compressed')")
        if self.levels[-1].whole:
            self.any_pattern = False
            self._check_fibres()
        integers = self.order is None or all(type(d) is int for d in self.order)
        if self.order is not None and not (integers and sorted(self.order) == list(range(self.groups(len(levels))))):
            raise ValueError(
                f"order={self.order} must be a permutation of 0 .. {self.groups(len(levels)) - 1}, one per dimension"
            )
        if self.order is not None and list(self.order) == sorted(self.order):
            self.order = None

    def _check_fibres(self) -> None:
        """Raise ValueError if a fibre that is stored as a whole would be stored for each of its entries."""
        tail = list(itertools.takewhile(lambda level: level.whole, reversed(self.levels)))
        above = self.levels[: len(self.levels) - len(tail)]
        if not all(level.merges for level in above) and any(not level.full for level in tail):
            given = ", ".join(repr(level_name(level)) for level in self.levels)
            raise ValueError(
                f"Format({given}): below a level that may repeat a coordinate, {tail[-1]} would store entries "
                "more than once; use 'compressed' above it"
            )

    def __init_subclass__(cls) -> None:
        Format._known[cls.__name__] = cls
        cls.own_map = cls.to_levels is not Format.to_levels or cls.level_sizes is not Format.level_sizes

    # -- equality: two formats are equal if they store tensors in the same way, even if their names differ

    def _identity(self) -> tuple[object, ...]:
        return (type(self), tuple(vars(self).items())) if self.own_map else (self.levels, self.order)

    def __eq__(self, other: object) -> bool:
        if self is other:  # a fast path: the guards of a compiled model compare formats on each call
            return True
        return isinstance(other, Format) and self.named()._identity() == other.named()._identity()

    def __hash__(self) -> int:
        return hash(self.named()._identity())

    def __deepcopy__(self, memo: object) -> Format:
        return self  # formats are immutable

    def __repr__(self) -> str:
        if type(self) is not Format:
            return f"{type(self).__name__}()"
        levels = ", ".join(repr(level_name(level)) for level in self.levels)
        return f"Format({levels}{'' if self.order is None else f', order={self.order}'})"

    @property
    def ordered(self) -> bool:
        """Are the entries stored in ascending order of their coordinates in the levels?"""
        return all(level.ordered for level in self.levels)

    def named(self) -> Format:
        """Return the format of the same stack that has a name, or this one.

        Examples
        --------
        >>> import gossamer as gs
        >>> gs.Format("dense", "compressed").named()
        CSR()
        """
        if type(self) is not Format:
            return self
        return _NAMED.get((self.levels, self.order), self)

    # -- the map from dimensions to levels

    def stack(self, ndim: int) -> tuple[Level, ...]:
        """Return the levels for a tensor of ``ndim`` dimensions (COO has as many as there are dimensions)."""
        return self.levels

    def groups(self, ndim: int) -> int:
        """Return how many dimensions the levels store, once trailing ones are flattened."""
        return len(self.stack(ndim))

    def group_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the sizes of the dimensions as stored: trailing ones flattened, missing ones 1."""
        groups = self.groups(len(shape))
        if len(shape) > groups:
            return (*shape[: groups - 1], math.prod(shape[groups - 1 :]))
        return (1,) * (groups - len(shape)) + tuple(shape)

    def level_sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the size of each level."""
        sizes = self.group_sizes(shape)
        return sizes if self.order is None else tuple(sizes[d] for d in self.order)

    def to_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        """Map coordinates of the dimensions (as in :meth:`group_sizes`) to coordinates of the levels."""
        return coords if self.order is None else [coords[d] for d in self.order]

    def from_levels(self, coords: list[Tensor], shape: Sequence[int]) -> list[Tensor]:
        """The inverse of :meth:`to_levels`."""
        return coords if self.order is None else [coords[self.order.index(d)] for d in range(len(coords))]

    def pads(self, shape: Sequence[int]) -> bool:
        """Do the levels have places outside the tensor (as the last blocks of a size that is not a multiple)?"""
        return self.own_map

    def matrix(self, structure: Structure) -> Matrix | None:
        """Return a structure of this format as a compressed matrix, or None if its entries must be sorted first."""
        return None

    def general(self) -> Format:
        """Return the format for results with another pattern or shape (a slice, a sum): this one, unless it supports
        only some.

        Examples
        --------
        >>> import gossamer as gs
        >>> gs.COO().general(), gs.formats.PackedNM(2, 4).general(), gs.Format("dense", "singleton").general()
        (COO(), CSR(), CSR())
        """
        if self.own_map or all(map(self._takes_all, range(len(self.levels)))):
            return self
        return as_format("CSR" if len(self.levels) == 2 else "COO")

    def _takes_all(self, number: int) -> bool:
        """Can a level store any coordinates? A singleton can where each entry has a parent of its own."""
        level = self.levels[number]
        if isinstance(level, Singleton):
            return number > 0 and not self.levels[number - 1].merges
        return level.takes_all

    def transposed(self) -> Format | None:
        """Return the format of the transpose, if it needs no copy of the values; else None.

        Examples
        --------
        >>> import gossamer as gs
        >>> gs.CSR().transposed()
        CSC()
        """
        if self.own_map or self.groups(2) != 2 or self.stack(2) != self.levels:
            return None
        i, j = self.order or (0, 1)
        return Format(*self.levels, order=(1 - i, 1 - j)).named()


_NAMED: dict[tuple[object, ...], Format] = {}


def register_name(format: Format, levels: Sequence[Level] = ()) -> None:
    """Give ``Format(...)`` with the same stack, or with these levels, this name (CSR, CSC, ...)."""
    _NAMED[(tuple(levels) or format.levels, format.order)] = format


def as_format(format: Format | type[Format] | str) -> Format:
    """Turn a format, its class, or its printed form into a format; nothing is evaluated.

    Examples
    --------
    >>> import gossamer as gs
    >>> gs.formats.as_format("BSR((4, 4))")
    BSR((4, 4))
    >>> gs.formats.as_format(gs.CSR)
    CSR()
    """
    if isinstance(format, Format):
        return format.named()
    if isinstance(format, type) and issubclass(format, Format):
        return format().named()
    if isinstance(format, str):
        return _parse(format)
    raise TypeError(f"a format such as gs.CSR() is needed, not {format!r}")


def _parse(text: str) -> Format:
    known = f"known are {', '.join(sorted(Format._known))} and Format('dense', 'compressed', ...)"
    try:
        call = ast.parse(text if "(" in text else f"{text}()", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("not a call")
        args = [_literal(arg) for arg in call.args]
        kwargs = {str(k.arg): _literal(k.value) for k in call.keywords}
        cls = Format if call.func.id == "Format" else Format._known[call.func.id]
        return cls(*args, **kwargs).named()
    except (SyntaxError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"unknown format {text[:100]!r}; {known}") from error


def _literal(node: ast.expr) -> Any:
    """A literal, or a level or a format as it prints: ``Fixed(width=4)``."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        if node.func.id not in KINDS:
            return _parse(ast.unparse(node))
        kwargs = {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        return KINDS[node.func.id](*(ast.literal_eval(arg) for arg in node.args), **kwargs)
    return ast.literal_eval(node)


def check_size(sizes: Sequence[int], what: str) -> int:
    """Return the product of sizes, which must be a valid number of elements."""
    if any(not isinstance(s, (int, torch.SymInt)) or s < 0 for s in sizes):
        raise ValueError(f"{what} {tuple(sizes)} must be non-negative integers")
    if math.prod(max(s, 1) for s in sizes) > _MAX_INT64:  # torch numbers strides as if a size of 0 were 1
        raise ValueError(f"{what} {tuple(sizes)} has more elements than a 64-bit index can number")
    return math.prod(sizes)
