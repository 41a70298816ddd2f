"""Entries from one stack of levels to another: read, sorted, written, by C that is built for just these levels.

The one way in which index arrays are made on a CPU: for conversions of tensors, for entries in any order, for the
nonzeros of a dense tensor, for operands that the compiler needs in another order. Where it can't be done (no compiler,
a level kind without ``walk`` or ``store``, keys of more than 63 bits) the answer is None, and the levels' own ``pack``
and ``unpack`` do it, in torch.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from gossamer.compiler.convert import conversion, writers
from gossamer.compiler.convert.layout import C_INDEX, INT32, Layout, Target
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.convert.reading import parts_of, read, source_of
from gossamer.compiler.convert.sorting import Keys, in_order, merged
from gossamer.compiler.convert.streaming import stream
from gossamer.compiler.convert.writing import Made, Restacked, compact, fits, parts_of_target, prepared
from gossamer.compiler.run.runtime import available
from gossamer.formats import Format, Structure
from gossamer.native import BuildError

LEAST = 4096  # entries: below, torch's own operators are as fast, and need no build


def enough(entries: int) -> bool:
    """Are there enough entries for C to pay off?"""
    return entries >= LEAST


def plain(*tensors: Tensor) -> bool:
    """Are these ordinary CPU tensors, outside any trace?"""
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


def restack(
    source: Structure | Tensor, target: Target | None, numbers: bool = False, values: Tensor | None = None
) -> Restacked | None:
    """Store the entries of a structure, the nonzeros of a dense tensor, or entries of these ``numbers`` elsewhere.

    The ``values`` of a structure, if they are given, come along where that saves a pass.

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
        if isinstance(source, Structure) and not (source.plain and source.valid() is not None):
            read_from = source_of(source)
            if read_from is not None and (made := stream(read_from, layout, values)) is not None:
                return made
        entries = read(source, layout, numbers)
        if entries is None:
            return None
        if numbers or any(level.store.counts for level in target.stack if level.store):  # else each has its place
            entries = in_order(entries, layout)
        if entries.repeats:
            entries = merged(entries, layout)
        return _write(entries, layout)
    except BuildError:
        return None


def _write(entries: Keys, layout: Layout) -> Restacked | None:
    target, n = layout.target, entries.n
    small = fits(n, target)
    dtype = torch.int32 if small else torch.int64
    parts = parts_of_target(target, dtype)
    passes = _passes(parts, layout.key, C_INDEX[dtype])

    def count(m: int, counts: Tensor, made: Made) -> None:
        passes.run(f"count{m}", made.arrays | {"key": entries.key, "out": counts}, made.known | {"n": n})

    made = prepared(layout, parts, dtype, count, lambda: n)
    if made.places > INT32 and small:
        return None  # this much padding needs wider integers
    place = None if compact(target, made.places, n) else fresh(n, dtype)
    arrays = made.arrays | {"key": entries.key, "place": place}
    passes.run("store", arrays, made.known | {"n": n, "place.given": place is not None})
    return Restacked(made.kept(target), entries.where, place, entries.group, n, made.places)


@functools.lru_cache(maxsize=256)
def _passes(parts: tuple[writers.Part, ...], key: str, index: str) -> Passes:
    return Passes(writers.writer(parts, key, index))
