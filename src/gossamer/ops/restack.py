"""Entries from one stack of levels to another: read, sorted, written, by C that is built for just these levels.

The one way in which index arrays are made on a CPU: for conversions of tensors, for entries in any order, for the
nonzeros of a dense tensor, for operands that the compiler needs in another order. Where it can't be done (no compiler,
a level kind without ``walk`` or ``store``, keys of more than 63 bits) the answer is None, and the levels' own ``pack``
and ``unpack`` do it, in torch.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer import native
from gossamer.compiler import LevelUse, Walk, conversion, runtime
from gossamer.compiler.conversion import Cut, Part
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Level
from gossamer.native import BuildError
from gossamer.ops.memory import fresh

LEAST = 4096  # entries: below, torch's own operators are as fast, and need no build
_INT32 = 2**31 - 1
_DIGIT, _ONE_DIGIT = 11, 14  # bits of a digit; up to how many it is only one
_C = {torch.int32: "int", torch.int64: "long", torch.uint8: "unsigned char", torch.bool: "unsigned char"}
_HALF = ("unsigned short", "(*v & 0x7fff) != 0", 1)
_NUMBER = "*v != 0"
#: How values are tested for zero: their type in C, the test, and how many of it make a value.
_TESTS = {
    torch.float32: ("float", _NUMBER, 1), torch.float64: ("double", _NUMBER, 1),
    torch.float16: _HALF, torch.bfloat16: _HALF,
    torch.int8: ("signed char", _NUMBER, 1), torch.int16: ("short", _NUMBER, 1), torch.int32: ("int", _NUMBER, 1),
    torch.int64: ("long", _NUMBER, 1), torch.uint8: ("unsigned char", _NUMBER, 1),
    torch.bool: ("unsigned char", _NUMBER, 1),
    torch.complex64: ("float", "((v[0] != 0) | (v[1] != 0))", 2),
    torch.complex128: ("double", "((v[0] != 0) | (v[1] != 0))", 2),
}  # fmt: skip


class Target(NamedTuple):
    """Where entries go: levels, their sizes, which part of which dimension each counts, and the dimensions' sizes."""

    stack: tuple[Level, ...]
    sizes: tuple[int, ...]
    cuts: tuple[Cut, ...]
    dims: tuple[int, ...]


class Restacked(NamedTuple):
    """What came of it: the arrays, and where entry k was and is (None: at k)."""

    arrays: dict[str, Tensor]
    where: Tensor | None
    place: Tensor | None
    group: Tensor | None  # where some numbers were there twice: which of the entries left each belongs to
    entries: int


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Is there a compiler to build kernels with? (Asked once: a search of the path costs more than many a kernel.)"""
    return native.compiler() is not None and os.environ.get("GOSSAMER_NATIVE", "1") != "0"


def plain(*tensors: Tensor) -> bool:
    """Are these ordinary CPU tensors, outside of any trace?"""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in tensors)


def parts_of(format: Format, shape: Sequence[int], levels: int) -> tuple[tuple[int, int], ...] | None:
    """Ask the format's map for the dimension of each level, and its weight, by trying one step in each."""
    steps = torch.eye(levels + 1, levels, dtype=torch.int64)
    dims = format.from_levels(list(steps.unbind(1)), shape)
    parts = []
    for n in range(levels):
        moved = [(d, int(c[n]) - int(c[levels])) for d, c in enumerate(dims) if int(c[n]) != int(c[levels])]
        if len(moved) != 1 or any(int(c[levels]) for c in dims):
            return None
        parts.append(moved[0])
    return tuple(parts)


@functools.lru_cache(maxsize=512)
def target_of(format: Format, shape: tuple[int, ...]) -> Target | None:
    """Describe a format for a shape; None if entries can't be written to it."""
    stack, sizes = format.stack(len(shape)), tuple(format.level_sizes(shape))
    if any(level.store is None for level in stack):
        return None
    parts = parts_of(format, shape, len(stack))
    cuts = conversion.cuts(parts, sizes) if parts is not None else None
    return None if cuts is None else Target(stack, sizes, cuts, tuple(format.group_sizes(shape)))


def restack(source: Structure | Tensor, target: Target | None, numbers: bool = False) -> Restacked | None:
    """Store the entries of a structure, the nonzeros of a dense tensor, or entries of these ``numbers`` elsewhere.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.tensor([[0., 3.], [4., 5.]]), gs.CSR())
    >>> made = restack(a.structure, target_of(gs.CSC(), (2, 2)))  # doctest: +SKIP
    >>> made.arrays["crd1"].tolist(), made.where.tolist()  # doctest: +SKIP
    ([1, 0, 1], [1, 0, 2])
    """
    if target is None or not available():
        return None
    bits = [max(size - 1, 0).bit_length() for size in target.sizes]
    if sum(bits) > 63 or 0 in target.dims:
        return None
    shifts = [sum(bits[n + 1 :]) for n in range(len(bits))]
    key = "int" if sum(bits) < 32 else "long"
    try:
        entries = _read(source, target, key, shifts, numbers)
        if entries is None:
            return None
        anywhere = not numbers and not any(level.store.counts for level in target.stack if level.store)
        return _write(_sorted(entries, bits, shifts, numbers, anywhere), target, shifts)
    except BuildError:
        return None


# -- reading


class _Entries(NamedTuple):
    key: Tensor  # one more than there are entries, where a reader may write in vain
    where: Tensor | None
    n: int
    levels: int  # by so many of the target's levels they must be sorted
    index: torch.dtype
    group: Tensor | None = None


def _read(
    source: Structure | Tensor, target: Target, key: str, shifts: list[int], numbers: bool
) -> _Entries | None:
    keys = torch.int32 if key == "int" else torch.int64
    natural = tuple(Cut(d) for d in range(len(target.dims)))
    if isinstance(source, Tensor):
        if numbers:
            return _read_numbers(source, target, key, keys, shifts)
        return _read_dense(source, source.dtype, target, key, keys, shifts, natural)
    if source.plain:
        valid = source.valid()
        if valid is not None:
            return _read_dense(valid, torch.bool, target, key, keys, shifts, natural)
    return _read_stack(source, target, key, keys, shifts, natural)


def _read_numbers(source: Tensor, target: Target, key: str, keys: torch.dtype, shifts: list[int]) -> _Entries:
    n = source.numel()
    index = _index(n)
    number = "int" if math.prod(target.dims) <= _INT32 else "long"
    call = _reader(conversion.number_reader, number, len(target.dims), target.cuts, key, _C[index])
    made, where = fresh(n + 1, keys), fresh(n, index)
    falls = torch.zeros(1, dtype=torch.int64)
    known = {"entries": n}
    call((source.contiguous(),), _integers(call, known, target, shifts), made, where, falls)
    if bool(falls):
        return _Entries(made, where, n, len(target.sizes), index)
    levels = conversion.unsorted_levels([Cut(d) for d in range(len(target.dims))], target.cuts)
    return _Entries(made, None, n, levels, index)


def _read_dense(
    values: Tensor, dtype: torch.dtype, target: Target, key: str, keys: torch.dtype, shifts: list[int], order: Any
) -> _Entries | None:
    if dtype not in _TESTS:
        return None
    ctype, test, per = _TESTS[dtype]
    values = values.contiguous()
    n = _count(ctype, test, per)(values.data_ptr(), values.numel())
    index = _index(values.numel())
    call = _reader(conversion.dense_reader, ctype, test, per, len(target.dims), target.cuts, key, _C[index])
    made, where = fresh(n + 1, keys), fresh(n + 1, index)
    known = {f"d{d}": size for d, size in enumerate(target.dims)}
    call((values,), _integers(call, known, target, shifts), made, where, None)
    return _Entries(made, where[:n], n, conversion.unsorted_levels(order, target.cuts), index)


def _read_stack(
    source: Structure, target: Target, key: str, keys: torch.dtype, shifts: list[int], natural: tuple[Cut, ...]
) -> _Entries | None:
    format, shape = source.format, source.shape
    levels = source.levels()
    dims = tuple(format.group_sizes(shape))
    parts = _source_parts(format, tuple(shape))
    if parts is None:
        return None
    uses = []
    known = {f"d{d}": size for d, size in enumerate(dims)}
    arrays: list[Tensor] = []
    for n, (level, own, _, size) in enumerate(levels):
        assert level.walk is not None
        numbers = level.numbers(own)
        known |= {f"n{n}": size, **{f"{name}{n}": value for name, value in numbers.items()}}
        typed = tuple((name, _C[own[name].dtype]) for name in level.arrays)
        arrays += [own[name].contiguous() for name in level.arrays]
        uses.append(LevelUse(Walk(*level.walk), "", n, typed, tuple(numbers)))
    guards = frozenset(range(len(dims))) if format.pads(shape) else frozenset()
    places = math.prod(source.value_shape)
    whole = not guards and all(level.walk is not None and not level.walk.real + level.walk.kept for level, *_ in levels)
    index = _index(places)
    regroup = 0 if dims == target.dims else len(target.dims)
    known |= {f"m{d}": size for d, size in enumerate(target.dims)}
    spec = (tuple(uses), parts, guards, target.cuts, regroup, key, None if whole else _C[index])
    call = _reader(conversion.reader, *spec)
    made, where = fresh(places + 1, keys), None if whole else fresh(places, index)
    n = call(arrays, _integers(call, known, target, shifts), made, where, None)
    have = conversion.cuts(parts, format.level_sizes(shape))
    if have is None or not all(level.walk is not None and level.walk.ordered for level, *_ in levels):
        return _Entries(made, where, n, len(target.sizes), index)
    if regroup:
        by_row = conversion.unsorted_levels(have, [Cut(d) for d in range(len(dims))]) == 0
        return _Entries(
            made, where, n, conversion.unsorted_levels(natural, target.cuts) if by_row else len(target.sizes), index
        )
    return _Entries(made, where, n, conversion.unsorted_levels(have, target.cuts), index)


@functools.lru_cache(maxsize=512)
def _source_parts(format: Format, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    stack = format.stack(len(shape))
    return None if any(level.walk is None for level in stack) else parts_of(format, shape, len(stack))


def _index(places: int) -> torch.dtype:
    return torch.int32 if places <= _INT32 else torch.int64


class _Call:
    """A C function that takes arrays and integers, then pointers."""

    def __init__(self, function: Any, names: tuple[str, ...], pointers: int) -> None:
        self.function, self.names = function, names
        function.argtypes, function.restype = [ctypes.c_void_p] * (2 + pointers), ctypes.c_long

    def __call__(self, arrays: Sequence[Tensor], integers: Any, *others: Tensor | None) -> int:
        held = (ctypes.c_void_p * max(len(arrays), 1))(*(a.data_ptr() for a in arrays))
        return self.function(held, integers, *(None if o is None else o.data_ptr() for o in others))


def _integers(call: _Call, known: dict[str, int], target: Target, shifts: list[int]) -> Any:
    known = {**known, **{f"s{n}": shift for n, shift in enumerate(shifts)}}
    known |= {f"m{d}": size for d, size in enumerate(target.dims)}
    return (ctypes.c_long * max(len(call.names), 1))(*(known[name] for name in call.names))


@functools.lru_cache(maxsize=512)
def _reader(write: Any, *spec: Any) -> _Call:
    source, names = write(*spec)
    return _Call(runtime.library(source).read, names, 3)


@functools.lru_cache(maxsize=32)
def _count(ctype: str, test: str, per: int) -> Any:
    found = runtime.library(conversion.count_source(ctype, test, per)).count
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_long], ctypes.c_long
    return found


# -- sorting


def _sorted(entries: _Entries, bits: list[int], shifts: list[int], numbers: bool, anywhere: bool) -> _Entries:
    key, where, n, levels, index, _ = entries
    width = sum(bits[:levels])
    sort, unique, repeats = _sorter("int" if key.dtype == torch.int32 else "long", _C[index])
    if width and n > 1 and not anywhere:
        digits = 1 if width <= _ONE_DIGIT else -(-width // _DIGIT)
        digit = -(-width // digits)
        other, moved = fresh(n + 1, key.dtype), fresh(n, index)
        counts = torch.empty(digits << digit, dtype=index)
        first = fresh(n, index) if where is None else where
        pointers = [t.data_ptr() for t in (key, first, other, moved, counts)]
        second = sort(n, shifts[levels - 1], digits, digit, *pointers, where is not None)
        key, where = (other, moved) if second else (key, first)
    if numbers and entries.where is not None and repeats(n, key.data_ptr()):  # it has one if they were in no order
        group = torch.empty(n, dtype=index)
        left = unique(n, key.data_ptr(), group.data_ptr())
        return _Entries(key, where, left, levels, index, group)
    return _Entries(key, where, n, levels, index)


@functools.lru_cache(maxsize=4)
def _sorter(key: str, index: str) -> tuple[Any, Any, Any]:
    made = runtime.library(conversion.SORT.format(key=key, index=index))
    made.sort.argtypes = [ctypes.c_long] * 4 + [ctypes.c_void_p] * 5 + [ctypes.c_long]
    made.unique.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    made.repeats.argtypes = [ctypes.c_long, ctypes.c_void_p]
    made.sort.restype = made.unique.restype = made.repeats.restype = ctypes.c_long
    return made.sort, made.unique, made.repeats


# -- writing


def _write(entries: _Entries, target: Target, shifts: list[int]) -> Restacked | None:
    key, where, n, _, _, group = entries
    small = max(n, *target.sizes) <= _INT32
    dtype = torch.int32 if small else torch.int64
    names = "int" if key.dtype == torch.int32 else "long"
    call: dict[str, _Call] | None = None
    arrays: dict[str, Tensor] = {}
    known = {f"n{m}": size for m, size in enumerate(target.sizes)}
    parents = 1
    parents_of = []
    # the types of a level's arrays don't depend on its entries: ask with none
    parts = tuple(_part(level, size, dtype) for level, size in zip(target.stack, target.sizes, strict=True))
    call = _writer(parts, names, _C[dtype])
    for m, (level, size, part) in enumerate(zip(target.stack, target.sizes, parts, strict=True)):
        counts = torch.zeros(0, dtype=dtype)
        if part.counts:
            counts = torch.zeros(parents * (size if part.counts == "entries" else 1), dtype=dtype)
            _run(call[f"count{m}"], arrays, parts, known, shifts, n, key, counts)
        made = level.prepare(counts, parents, size, dtype)
        known |= {f"{name}{m}": value for name, value in level.numbers(made).items()}
        arrays |= {f"{name}{m}": array for name, array in made.items()}
        parents_of.append(parents)
        parents = level.positions(made, parents, size)
    if parents > _INT32 and small:
        return None  # so many places of padding need wider integers
    ordered = any(part.counts for part in parts) and all(level.walk and level.walk.ordered for level in target.stack)
    place = None if ordered and parents == n else fresh(n, dtype)
    _run(call["store"], arrays, parts, known, shifts, n, key, place)
    kept = {}
    for m, (level, size, above) in enumerate(zip(target.stack, target.sizes, parents_of, strict=True)):
        own = {name: arrays[f"{name}{m}"] for name in level.arrays}
        level.stored(own, above, size)
        kept |= {f"{name}{m}": array for name, array in own.items()}
    return Restacked(kept, where, place, group, n)


def _part(level: Level, size: int, dtype: torch.dtype) -> Part:
    store = level.store
    assert store is not None
    arrays, numbers = _shape_of(level, dtype)
    return Part(store.at, store.write, store.counts, level.merges, arrays, numbers)


@functools.lru_cache(maxsize=128)
def _shape_of(level: Level, dtype: torch.dtype) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Names and C types of a level's arrays, and names of its integers: as for no parent at all."""
    made = level.prepare(torch.zeros(0, dtype=dtype), 0, 1, dtype)
    return tuple((name, _C[array.dtype]) for name, array in made.items()), tuple(level.numbers(made))


def _run(
    call: _Call,
    arrays: dict[str, Tensor],
    parts: Sequence[Part],
    known: dict[str, int],
    shifts: list[int],
    n: int,
    key: Tensor,
    out: Tensor | None,
) -> None:
    names = [f"{name}{m}" for m, part in enumerate(parts) for name, _ in part.arrays]
    pointers = [arrays[name].data_ptr() if name in arrays else 0 for name in names]
    held = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
    integers = [known.get(name, 0) for name in call.names]
    integers[: len(shifts)] = shifts
    given = (ctypes.c_long * len(integers))(*integers)
    call.function(held, given, n, key.data_ptr(), None if out is None else out.data_ptr())


@functools.lru_cache(maxsize=256)
def _writer(parts: tuple[Part, ...], key: str, index: str) -> dict[str, _Call]:
    source, names = conversion.writer(parts, key, index)
    made = runtime.library(source)
    found = {}
    for name in (*(f"count{m}" for m, part in enumerate(parts) if part.counts), "store"):
        call = _Call(getattr(made, name), names, 3)
        call.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        call.function.restype = None
        found[name] = call
    return found


# -- values


def moved(values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int) -> Tensor:
    """Values of a tensor at their new places: ``out[place[k]] = values[where[k]]``, zeros elsewhere."""
    if torch.is_grad_enabled() and values.requires_grad:
        return _Move.apply(values, where, place, n, places)
    return _move(values, where, place, n, places)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int
    ) -> Tensor:
        ctx.back = (place, where, n, values.numel())
        ctx.shape = values.shape
        return _move(values.detach(), where, place, n, places)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return moved(grad, *ctx.back).view(ctx.shape), None, None, None, None


def _move(values: Tensor, where: Tensor | None, place: Tensor | None, n: int, places: int) -> Tensor:
    values = values.contiguous()
    whole = place is None and n == places
    out = fresh(places, values.dtype, zero=not whole)
    size = values.element_size()
    ctype, per = ("long", size // 8) if size >= 8 else ({1: "char", 2: "short", 4: "int"}[size], 1)
    types = [_C[torch.int32 if t is None else t.dtype] for t in (where, place)]
    held = [0 if t is None else t.data_ptr() for t in (where, place)]
    _mover(ctype, per, *types)(n, values.data_ptr(), held[0], out.data_ptr(), held[1])
    return out


@functools.lru_cache(maxsize=32)
def _mover(ctype: str, per: int, index: str, other: str) -> Any:
    found = runtime.library(conversion.MOVE.format(ctype=ctype, per=per, index=index, other=other)).move
    found.argtypes, found.restype = [ctypes.c_long] + [ctypes.c_void_p] * 4, None
    return found


