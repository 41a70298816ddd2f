"""What the formats promise, in plain Python: lists, loops and nothing of gossamer's own checks.

A :class:`Spec` says how a format stores a tensor. :func:`read` walks the arrays as the words of the documentation say,
and returns the entries, or the promise that is broken. It is slow, and it is the judge of the malformed-data tests:
what it calls broken must be refused, and what it can read must be accepted with the same entries.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gossamer as gs
from gossamer.formats.levels import Fixed

INT32, INT64 = 2**31 - 1, 2**63 - 1
ARRAYS = {
    "dense": (), "bitmap": ("mask",), "compressed": ("pos", "crd"), "compressed-nonunique": ("pos", "crd"),
    "singleton": ("crd",), "fixed": ("crd",),
}  # fmt: skip


class Broken(Exception):  # noqa: N818 - what it says is the broken promise
    pass


class TooBig(Exception):  # noqa: N818
    """More positions than loops can walk: no verdict."""


@dataclass(frozen=True)
class Spec:
    """A format, and how it stores a tensor: its levels for a number of dimensions, their order, its block and width."""

    format: gs.Format
    levels: Callable[[int], tuple[str, ...]]
    order: tuple[int, ...] | None = None
    block: tuple[int, int] | None = None
    width: int | None = None

    def dims(self, ndim: int) -> int:
        return 2 if self.block else len(self.levels(ndim))

    def sizes(self, shape: tuple[int, ...]) -> list[int]:
        """Sizes of the dimensions as stored: trailing ones flattened, missing ones 1."""
        n = self.dims(len(shape))
        if len(shape) > n:
            return [*shape[: n - 1], math.prod(shape[n - 1 :])]
        return [1] * (n - len(shape)) + list(shape)

    def level_sizes(self, shape: tuple[int, ...]) -> list[int]:
        sizes = self.sizes(shape)
        order = self.order or tuple(range(len(sizes)))
        if self.block:
            outer = [(size + block - 1) // block for size, block in zip(sizes, self.block, strict=True)]
            return [outer[d] for d in order] + [self.block[d] for d in order]
        return [sizes[d] for d in order]

    def coordinate(self, place: tuple[int, ...]) -> list[int]:
        """Coordinate in the dimensions of a coordinate in the levels."""
        order = self.order or tuple(range(len(place) if not self.block else 2))
        out = [0] * len(order)
        for level, dim in enumerate(order):
            out[dim] = place[level] * self.block[dim] + place[level + 2] if self.block else place[level]
        return out


def _stack(*levels: str, order: tuple[int, ...] | None = None) -> Spec:
    return Spec(gs.Format(*levels, order=order), lambda ndim: levels, order)


SPECS = {
    "CSR": Spec(gs.CSR(), lambda n: ("dense", "compressed")),
    "CSC": Spec(gs.CSC(), lambda n: ("dense", "compressed"), (1, 0)),
    "COO": Spec(gs.COO(), lambda n: ("compressed-nonunique", *("singleton",) * (max(n, 1) - 1))),
    "DCSR": Spec(gs.DCSR(), lambda n: ("compressed", "compressed")),
    "CSF": Spec(gs.CSF(), lambda n: ("compressed",) * max(n, 1)),
    "BSR 2x2": Spec(gs.BSR((2, 2)), lambda n: ("dense", "compressed", "dense", "dense"), None, (2, 2)),
    "BSR 3x2": Spec(gs.BSR((3, 2)), lambda n: ("dense", "compressed", "dense", "dense"), None, (3, 2)),
    "BSR by columns": Spec(
        gs.BSR((2, 3), order=(1, 0)), lambda n: ("dense", "compressed", "dense", "dense"), (1, 0), (2, 3)
    ),
    "ELL": Spec(gs.ELL(), lambda n: ("dense", "fixed")),
    "ELL 6": Spec(gs.ELL(6), lambda n: ("dense", "fixed"), width=6),
    "Masked": Spec(gs.Masked(), lambda n: (*("dense",) * (max(n, 1) - 1), "bitmap")),
    "compressed": _stack("compressed"),
    "bitmap": _stack("bitmap"),
    "rows of COO": _stack("dense", "compressed-nonunique", "singleton"),
    "DCSC": _stack("compressed", "compressed", order=(1, 0)),
    "hybrid COO": _stack("compressed-nonunique", "singleton", "dense"),
    "fibres": _stack("compressed", "dense", order=(1, 0)),
    "bitmap of rows": _stack("bitmap", "compressed"),
    "ELL of fibres": Spec(gs.Format("dense", Fixed(), "dense"), lambda n: ("dense", "fixed", "dense")),
    "3 levels": _stack("dense", "compressed", "compressed", order=(2, 0, 1)),
    "4 levels": _stack("compressed", "dense", "compressed", "bitmap", order=(3, 1, 0, 2)),
    "all dense": _stack("dense", "dense", order=(1, 0)),
}


def read(spec: Spec, shape: Any, values: Any, arrays: Any) -> dict[tuple[int, ...], Any]:
    """Return coordinate -> value of every stored entry; raise Broken if a promise is."""
    shape, levels, sizes = _shape(spec, shape)
    lists = _arrays(levels, values, arrays)
    places, axes = [()], []  # type: list[tuple[int, ...] | None], list[int]
    for i, (level, size) in enumerate(zip(levels, sizes, strict=True)):
        own = {name: lists[f"{name}{i}"] for name in ARRAYS[level]}
        if level in ("dense", "bitmap"):
            axes.append(size)
            if "mask" in own and tuple(own["mask"].shape) == tuple(axes):
                own["mask"] = own["mask"].reshape(-1)
        places = _WALK[level](places, size, spec, **own)
        if level not in ("dense", "bitmap"):
            axes = [len(places)]
    need(tuple(values.shape) == tuple(axes), f"values are {tuple(values.shape)}, must be {axes}")
    wide = all(a.dtype != torch.int32 for a in lists.values())
    need(wide or max(len(places), *sizes) <= INT32, "int32 can't number this")
    return _entries(spec, shape, places, values)


def need(condition: bool, promise: str) -> None:
    if not condition:
        raise Broken(promise)


def _shape(spec: Spec, shape: Any) -> tuple[tuple[int, ...], tuple[str, ...], list[int]]:
    need(isinstance(shape, (tuple, list)) and all(isinstance(s, int) for s in shape), "shape is not integers")
    shape = tuple(shape)
    need(all(s >= 0 for s in shape), "a size is negative")
    sizes = spec.level_sizes(shape)
    for some in (shape, sizes):
        need(math.prod(max(s, 1) for s in some) <= INT64, "the shape overflows")
    return shape, spec.levels(len(shape)), sizes


def _arrays(levels: tuple[str, ...], values: Any, arrays: Any) -> dict[str, torch.Tensor]:
    need(isinstance(arrays, dict), "arrays are not a mapping")
    names = [f"{name}{i}" for i, level in enumerate(levels) for name in ARRAYS[level]]
    need(set(arrays) == set(names), "arrays are missing, or there are others")
    for a in (values, *arrays.values()):
        need(type(a) in (torch.Tensor, torch.nn.Parameter) and a.layout == torch.strided, "not a plain tensor")
        need(a.device.type == "cpu", "not on the CPU")
        need(a.numel() * a.element_size() <= a.untyped_storage().nbytes(), "expanded")
    for name, a in arrays.items():
        allowed = (torch.bool,) if name.startswith("mask") else (torch.int32, torch.int64)
        need(a.dtype in allowed, f"{name} has the wrong type")
    need(len({a.dtype for name, a in arrays.items() if not name.startswith("mask")}) < 2, "index types are mixed")
    return arrays


Places = list[tuple[int, ...] | None]  # of each position of a level: its coordinates, or None for padding


def _extend(place: tuple[int, ...] | None, coord: int) -> tuple[int, ...] | None:
    return None if place is None else (*place, coord)


def _dense(places: Places, size: int, spec: Spec) -> Places:
    if len(places) * size > 10**5:
        raise TooBig
    return [_extend(place, c) for place in places for c in range(size)]


def _bitmap(places: Places, size: int, spec: Spec, mask: torch.Tensor) -> Places:
    need(mask.dim() == 1, "mask has the wrong number of dimensions")
    need(mask.numel() == len(places) * size, "mask has the wrong length")
    return [place if bit else None for place, bit in zip(_dense(places, size, spec), mask.tolist(), strict=True)]


def _compressed(
    places: Places, size: int, spec: Spec, pos: torch.Tensor, crd: torch.Tensor, unique: bool = True
) -> Places:
    need(pos.dim() == 1 and crd.dim() == 1, "pos or crd has the wrong number of dimensions")
    p, c = pos.tolist(), crd.tolist()
    need(len(p) == len(places) + 1, "pos has the wrong length")
    need(p[0] == 0 and p[-1] == len(c), "pos starts or ends wrong")
    need(all(a <= b for a, b in itertools.pairwise(p)), "pos runs backwards")
    need(all(0 <= x < size for x in c), "a coordinate is out of range")
    out: Places = []
    for place, start, end in zip(places, p, p[1:], strict=False):
        below = c[start:end]
        need(all(a < b if unique else a <= b for a, b in itertools.pairwise(below)), "crd is not ascending")
        out += [_extend(place, x) for x in below]
    return out


def _nonunique(places: Places, size: int, spec: Spec, pos: torch.Tensor, crd: torch.Tensor) -> Places:
    return _compressed(places, size, spec, pos, crd, unique=False)


def _singleton(places: Places, size: int, spec: Spec, crd: torch.Tensor) -> Places:
    need(crd.dim() == 1 and crd.numel() == len(places), "crd has the wrong length")
    need(all(0 <= x < size for x in crd.tolist()), "a coordinate is out of range")
    return [_extend(place, x) for place, x in zip(places, crd.tolist(), strict=True)]


def _fixed(places: Places, size: int, spec: Spec, crd: torch.Tensor) -> Places:
    need(crd.dim() == 2 and crd.shape[0] == len(places), "crd has the wrong shape")
    need(spec.width is None or crd.shape[1] == spec.width, "crd has the wrong width")
    out: Places = []
    for place, row in zip(places, crd.tolist(), strict=True):
        real = [x for x in row if x != -1]
        need(row == real + [-1] * (len(row) - len(real)), "padding is not at the end")
        need(all(0 <= x < size for x in real), "a coordinate is out of range")
        need(all(a < b for a, b in itertools.pairwise(real)), "crd is not ascending")
        out += [None if x == -1 else _extend(place, x) for x in row]
    return out


_WALK: dict[str, Callable[..., Places]] = {
    "dense": _dense,
    "bitmap": _bitmap,
    "compressed": _compressed,
    "compressed-nonunique": _nonunique,
    "singleton": _singleton,
    "fixed": _fixed,
}


def _entries(spec: Spec, shape: tuple[int, ...], places: Places, values: torch.Tensor) -> dict[tuple[int, ...], Any]:
    entries: dict[tuple[int, ...], Any] = {}
    sizes, last = spec.sizes(shape), None
    for place, value in zip(places, values.reshape(-1).tolist(), strict=True):
        coord = None if place is None else spec.coordinate(place)
        if coord is None or any(c >= s for c, s in zip(coord, sizes, strict=True)):
            need(value == 0, "a value in the padding is not zero")
            continue
        need(last is None or place > last, "entries are not ascending, or one occurs twice")
        last = place
        entries[tuple(coord)] = value
    return entries
