"""Checks that a level can be read safely, derived from the description that kernels use to read it.

A kernel follows ``Level.walk``: from the first position below a parent to the last, each with its coordinate. Here the
same expressions are computed for all parents at once, in torch, and every index, position and coordinate must be in
range. If the check passes, any kernel can read the arrays.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.formats.levels.base import Arrays, Level, require

_SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.Lt: operator.lt, ast.GtE: operator.ge, ast.Gt: operator.gt, ast.LtE: operator.le, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip


def value(text: str, names: Mapping[str, Any], arrays: Arrays) -> Any:
    """Return the value of a level's expression, for integers or tensors; raise if an index is outside its array.

    Examples
    --------
    >>> import torch
    >>> value("pos[p + 1]", {"p": torch.arange(2)}, {"pos": torch.tensor([0, 2, 3])})
    tensor([2, 3])
    >>> value("pos[p + 1]", {"p": torch.arange(3)}, {"pos": torch.tensor([0, 2, 3])})
    Traceback (most recent call last):
        ...
    ValueError: pos[p + 1] reads place 3 of 3
    """

    def node(n: ast.expr) -> Any:
        if isinstance(n, ast.BinOp):
            return _SIGNS[type(n.op)](node(n.left), node(n.right))
        if isinstance(n, ast.Compare):
            return _SIGNS[type(n.ops[0])](node(n.left), node(n.comparators[0]))
        if isinstance(n, ast.Name):
            return names[n.id]
        if isinstance(n, ast.Constant):
            return n.value
        assert isinstance(n, ast.Subscript) and isinstance(n.value, ast.Name)
        array, index = arrays[n.value.id].reshape(-1), torch.as_tensor(node(n.slice))
        if index.numel():
            low, high = int(index.min()), int(index.max())
            wrong = low if low < 0 else high
            require(low >= 0 and high < array.numel(), f"{ast.unparse(n)} reads place {wrong} of {array.numel()}")
        return array[index].long()

    return node(_parsed(text))


@lru_cache(maxsize=256)
def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def check(level: Level, arrays: Arrays, parents: int, size: int, sorted: bool = True) -> None:
    """Raise ValueError unless the arrays of a level are complete, and its walk stays inside them.

    Without ``sorted``, the coordinates of a parent may be in any order: safe to read, but nothing more.

    Examples
    --------
    >>> import torch
    >>> from gossamer.formats.levels import Compressed
    >>> check(Compressed(), {"pos": torch.tensor([0, 1]), "crd": torch.tensor([7])}, 1, 4)
    Traceback (most recent call last):
        ...
    ValueError: crd has coordinates 7 .. 7, must lie in 0 .. 3
    """
    level.check_sizes(parents, size)
    _check_arrays(level, arrays, parents, size)
    level.check(arrays, parents, size)
    if level.walk is not None and not level.full:
        _check_walk(level, arrays, parents, size, sorted)


def _check_arrays(level: Level, arrays: Arrays, parents: int, size: int) -> None:
    """Types and lengths."""
    for name, types in level.types.items():
        allowed = " or ".join(str(t)[6:] for t in types)
        require(arrays[name].dtype in types, f"{name} is {arrays[name].dtype}, must be {allowed}")
    for name, text in level.lengths.items():
        array = arrays[name]
        require(array.dim() == 1, f"{name} has {array.dim()} dimensions, must have 1")
        names = {"parents": parents, "size": size, **level.numbers(arrays)}
        want = int(value(text, names, arrays))
        require(array.numel() == want, f"{name} has {array.numel()} entries, must have {want} ({text})")


def _check_walk(level: Level, arrays: Arrays, parents: int, size: int, sorted: bool) -> None:
    walk = level.walk
    assert walk is not None
    device = next(iter(arrays.values())).device if arrays else torch.device("cpu")
    names: dict[str, Any] = {"p": torch.arange(parents, device=device), "size": size, **level.numbers(arrays)}
    places = level.positions(arrays, parents, size)
    begin, end = (torch.as_tensor(value(text, names, arrays)) for text in (walk.begin, walk.end))
    require(not bool((begin > end).any()), f"{_array(walk.begin)} runs backwards, must never decrease")
    inside = bool((end <= places).all()) and int((end - begin).sum()) <= places
    require(inside, f"{walk.begin} .. {walk.end} leave the {places} positions of the level")
    if walk.at == "q":
        _check_runs(_array(walk.begin), begin, end, places)
    count = end - begin
    parent = torch.repeat_interleave(names["p"], count)
    first = torch.cumsum(count, 0) - count
    names |= {"p": parent, "q": begin[parent] + torch.arange(parent.numel(), device=device) - first[parent]}
    names["at"] = at = torch.as_tensor(value(walk.at, names, arrays))
    if walk.at != "q":
        _check_positions(at, places)
    real = None if not walk.real else torch.as_tensor(value(walk.real, names, arrays))
    coord = torch.as_tensor(value(walk.coord, names, arrays))
    name = _array(walk.coord)
    _check_range(coord if real is None else coord[real], size, name)
    if sorted and walk.ordered:
        _check_order(level, parent, coord, real, name)


def _check_runs(name: str, begin: Tensor, end: Tensor, places: int) -> None:
    """The positions of each parent begin where those of the one before end."""
    if begin.numel():
        require(int(begin[0]) == 0, f"{name} starts at {int(begin[0])}, must start at 0")
        whole = bool((begin[1:] == end[:-1]).all()) and int(end[-1]) == places
        require(whole, f"{name} ends at {int(end[-1])}, must end at {places}, without gaps")


def _check_positions(at: Tensor, places: int) -> None:
    """Every position belongs to one parent."""
    require(not bool(((at < 0) | (at >= places)).any()), f"a position lies outside 0 .. {places - 1}")
    seen = torch.zeros(places, dtype=torch.bool, device=at.device)
    seen[at] = True
    require(at.numel() == places and bool(seen.all()), "a position belongs to two parents, or to none")


def _check_range(coord: Tensor, size: int, name: str) -> None:
    if coord.numel():
        low, high = int(coord.min()), int(coord.max())
        require(low >= 0 and high < size, f"{name} has coordinates {low} .. {high}, must lie in 0 .. {size - 1}")


def _check_order(level: Level, parent: Tensor, coord: Tensor, real: Tensor | None, name: str) -> None:
    up = coord[1:] > coord[:-1] if level.merges else coord[1:] >= coord[:-1]
    good = up if real is None else ~real[1:] | (real[:-1] & up)
    apart = parent[1:] != parent[:-1]  # a step across two parents may go down
    how = f"{'strictly ' if level.merges else ''}ascending below a parent"
    end = "" if real is None else ", with its padding at the end"
    require(bool((good | apart).all()), f"{name} is not {how}{end}")


def _array(text: str) -> str:
    """The array that an expression reads first."""
    reads = [n.value for n in ast.walk(_parsed(text)) if isinstance(n, ast.Subscript)]
    return next((name.id for name in reads if isinstance(name, ast.Name)), text)
