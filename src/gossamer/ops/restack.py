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
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import conversion, runtime, writers
from gossamer.compiler.runtime import available
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Level
from gossamer.native import BuildError
from gossamer.ops.memory import fresh
from gossamer.ops.reading import C_INDEX, INT32, Call, Keys, Layout, Target, in_order, parts_of, read

LEAST = 4096  # entries: below, torch's own operators are as fast, and need no build


class Restacked(NamedTuple):
    """What came of it: the arrays, where each entry was and is in the values, and how many there are."""

    arrays: dict[str, Tensor]
    where: Tensor | None  # None: entry k was at k
    place: Tensor | None  # None: entry k is at k
    group: Tensor | None  # where some numbers were there twice: which of the entries left each belongs to
    entries: int


def enough(entries: int) -> bool:
    """Are there so many entries that C pays?"""
    return entries >= LEAST


def plain(*tensors: Tensor) -> bool:
    """Are these ordinary CPU tensors, outside of any trace?"""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) and t.device.type == "cpu" for t in tensors)


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
    layout = None if 0 in target.dims else Layout.of(target)
    if layout is None:
        return None
    try:
        entries = read(source, layout, numbers)
        if entries is None:
            return None
        if numbers or any(level.store.counts for level in target.stack if level.store):  # else each has its place
            entries = in_order(entries, layout, numbers)
        return _write(entries, layout)
    except BuildError:
        return None


def _write(entries: Keys, layout: Layout) -> Restacked | None:
    target, (key, where, n, _, _, group) = layout.target, entries
    full = all(level.full for level in target.stack)
    small = max(n, *target.sizes, math.prod(target.sizes) if full else 0) <= INT32
    dtype = torch.int32 if small else torch.int64
    parts = tuple(_part(level, dtype) for level in target.stack)
    call = _writer(parts, layout.key, C_INDEX[dtype])
    arrays: dict[str, Tensor] = {}
    known = {f"n{m}": size for m, size in enumerate(target.sizes)}
    known |= {f"s{m}": shift for m, shift in enumerate(layout.shifts)}
    parents, above = 1, []
    for m, (level, size, part) in enumerate(zip(target.stack, target.sizes, parts, strict=True)):
        counts = torch.zeros(0, dtype=dtype)
        single = writers.fibre(parts) == len(parts) - 1  # does each entry have its own fibre?
        if single and part.counts and not part.merges and (m == 0 or not parts[m - 1].merges):
            counts = torch.tensor([n if m == 0 else 1], dtype=dtype).expand(parents)
        elif part.counts:
            counts = torch.zeros(parents * (size if part.counts == "entries" else 1), dtype=dtype)
            _run(call[f"count{m}"], arrays, parts, known, n, key, counts)
        made = level.prepare(counts, parents, size, dtype)
        known |= {f"{name}{m}": value for name, value in level.numbers(made).items()}
        arrays |= {f"{name}{m}": array for name, array in made.items()}
        above.append(parents)
        parents = level.positions(made, parents, size)
    if parents > INT32 and small:
        return None  # so many places of padding need wider integers
    ordered = any(part.counts for part in parts) and all(level.walk and level.walk.ordered for level in target.stack)
    place = None if ordered and parents == n else fresh(n, dtype)
    _run(call["store"], arrays, parts, known, n, key, place)
    kept: dict[str, Tensor] = {}
    for m, (level, size) in enumerate(zip(target.stack, target.sizes, strict=True)):
        own = {name: arrays[f"{name}{m}"] for name in level.arrays}
        level.stored(own, above[m], size)
        kept |= {f"{name}{m}": array for name, array in own.items()}
    return Restacked(kept, where, place, group, n)


@functools.lru_cache(maxsize=256)
def _part(level: Level, dtype: torch.dtype) -> writers.Part:
    """What the writer must know of a level. The types of its arrays don't depend on its entries: ask with none."""
    store, made = level.store, level.prepare(torch.zeros(0, dtype=dtype), 0, 1, dtype)
    assert store is not None
    arrays = tuple((name, C_INDEX[array.dtype]) for name, array in made.items())
    whole, ordered = level.full and not level.arrays, level.walk is not None and level.walk.ordered
    numbers = tuple(level.numbers(made))
    return writers.Part(store.at, store.write, store.counts, level.merges, whole, ordered, arrays, numbers)


def _run(
    call: Call,
    arrays: dict[str, Tensor],
    parts: Sequence[writers.Part],
    known: dict[str, int],
    n: int,
    key: Tensor,
    out: Tensor | None,
) -> None:
    """Go once through the keys; what is not known yet is of a level below the one that counts."""
    names = [f"{name}{m}" for m, part in enumerate(parts) for name, _ in part.arrays]
    pointers = [arrays[name].data_ptr() if name in arrays else 0 for name in names]
    held = (ctypes.c_void_p * max(len(pointers), 1))(*pointers)
    given = (ctypes.c_long * len(call.names))(*(known.get(name, 0) for name in call.names))
    call.function(held, given, n, key.data_ptr(), None if out is None else out.data_ptr())


@functools.lru_cache(maxsize=256)
def _writer(parts: tuple[writers.Part, ...], key: str, index: str) -> dict[str, Call]:
    source, names = writers.writer(parts, key, index)
    made = runtime.library(source)
    found = {}
    for name in (*(f"count{m}" for m, part in enumerate(parts) if part.counts), "store"):
        call = Call(getattr(made, name), names, 3)
        call.function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        call.function.restype = None
        found[name] = call
    return found
