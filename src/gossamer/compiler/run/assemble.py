"""Sparse results: count the entries of each unit, write them where they will stay, build the structure.

How many entries a result has, and where each row begins, follows from the patterns alone. It is counted once, in a pass
that only marks coordinates, and kept with the plan: the next product of the same patterns, with any values, is one
pass. The structure of that one is kept too (``RESULTS``, limited in bytes), and those after it compute values alone.
What is computed entry by entry has at most as many entries as its operands together: one thread writes it in one pass
already the first time, into memory for all of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.layout import Target
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.restack import enough, restack
from gossamer.compiler.loops import names
from gossamer.compiler.run.cache import RESULTS
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Compressed, Dense
from gossamer.formats.values import summed

if TYPE_CHECKING:
    from gossamer.compiler.run.plans import Plan

_INT32 = 2**31 - 1
_AT_ONCE = 1 << 26  # bytes of a product up to which memory is taken for as many entries as multiplications
_USED = 7 / 8  # share of the memory for a result from which on the rest of it is not worth a copy


class Places(NamedTuple):
    """Where the entries of a result go."""

    start: Tensor  # the first of each unit
    total: int
    counts: Tensor  # entries of each row; every call writes the same numbers again
    pos: Tensor | None  # where each row begins; None for results that are not rows


def assemble(plan: Plan, pointers: list[int], threads: int) -> tuple[Tensor, Structure]:
    """Run a plan with a sparse result: its values, and its structure."""
    out, program = plan.out, plan.kernel.program
    assert isinstance(out, Format)
    places = plan.places
    known: Structure | None = RESULTS.get(id(plan)) if places is not None else None
    if known is not None and places is not None:
        return _again(plan, pointers, places, known, threads), known
    again, most = places is not None and plan.kernel.repeats, bound(plan) if places is None and threads == 1 else None
    if most is not None:
        places, crd, value = _at_once(plan, pointers, most)
    else:
        places = places or _count(plan, pointers, threads)
        crd, value = _memory(plan, pointers, places, places.total)
        if places.total:
            plan.kernel.run("fill", pointers, plan.sizes_array, 4 * threads, places.start.data_ptr(), 0, threads)
    plan.places = places
    total, pos = places.total, places.pos
    if pos is not None:
        last = len(program.output.vars) - 1
        short = crd if total <= _INT32 else crd.long()  # both arrays have one type
        made = Structure(out, plan.out_shape, {f"pos{last}": pos, f"crd{last}": short}, crd.device)
        if again and short is crd:
            RESULTS.keep(id(plan), made, (plan,))
        return value, made
    return _stored(out, crd, value, plan.out_shape, plan.choice.method != "sort")


def _again(plan: Plan, pointers: list[int], places: Places, known: Structure, threads: int) -> Tensor:
    """Compute the values of a result whose structure is known."""
    value = fresh(places.total, plan.dtype)
    crd = known.arrays[f"crd{len(plan.out_shape) - 1}"]
    pointers[plan.slot[names.OUT_CRD]], pointers[plan.slot[names.OUT]] = crd.data_ptr(), value.data_ptr()
    if places.total:
        plan.kernel.run("again", pointers, plan.sizes_array, 4 * threads, places.start.data_ptr(), 0, threads)
    return value


def bound(plan: Plan) -> int | None:
    """Return how many entries a result can have at most; None if that is not known, or far too many.

    It is known of what is computed entry by entry. A product of two matrices in rows has at most one entry for each
    multiplication.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.ops.plans_of import plan_of
    >>> a, b = gs.from_dense(torch.eye(4), gs.CSR()), gs.from_dense(torch.ones(4, 4), gs.CSR())
    >>> [bound(plan_of(text, [a, b])) for text in ("ij + ij -> ij", "ij,ij->ij", "ij,jk->ik")]
    [20, 4, 16]
    """
    points, entries = plan.kernel.points, 0
    if plan.kernel.repeats:
        return _products(plan)
    for point in points:
        least = None
        for k in point:
            view = plan.views[k]
            if view is None or view.cut or type(view.levels[-1]) is not Compressed:
                return None
            own = view.arrays[f"crd{len(view.levels) - 1}"].numel()
            least = own if least is None else min(least, own)
        entries += least or 0
    return entries if points else None


def _products(plan: Plan) -> int | None:
    """Return how many multiplications a product of two matrices in rows takes; None if it is not one, or too large."""
    program, (first, *others) = plan.kernel.program, plan.views
    second = others[0] if len(others) == 1 else None
    if first is None or second is None or program.statement.summed != program.order[1:2]:
        return None
    rows = [type(level) for view in (first, second) for level in view.levels] == [Dense, Compressed, Dense, Compressed]
    i, k, j = program.order if len(program.order) == 3 else ("", "", "")
    if not rows or [o.vars for o in program.operands] != [(i, k), (k, j)]:
        return None
    lengths = second.arrays["pos1"].diff().index_select(0, first.arrays["crd1"])
    most = int(lengths.sum(dtype=torch.int64))
    return most if most * (4 + plan.dtype.itemsize) <= _AT_ONCE else None


def _empty(plan: Plan, pointers: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return memory for the entries of each row and where those of each unit begin, and for their number."""
    program = plan.kernel.program
    start, done = torch.zeros(2, max(plan.units, 1) + 1, dtype=torch.int64).unbind()
    counts = done
    if not plan.kernel.row_by_row:
        outer = program.output.vars[:-1] if program.output.kind == "rows" else ()
        counts = torch.zeros(math.prod(plan.sizes[v] for v in outer), dtype=torch.int64)
    pointers[plan.slot[names.OUT_COUNT]] = counts.data_ptr()
    return counts, start, done


def _memory(plan: Plan, pointers: list[int], places: Places | None, total: int) -> tuple[Tensor, Tensor]:
    """Return memory for the coordinates and values of a result."""
    rows = plan.kernel.program.output.kind == "rows"
    crd, value = fresh(total, torch.int32 if rows else torch.int64), fresh(total, plan.dtype)
    if places is not None:
        pointers[plan.slot[names.OUT_COUNT]] = places.counts.data_ptr()
    pointers[plan.slot[names.OUT_CRD]], pointers[plan.slot[names.OUT]] = crd.data_ptr(), value.data_ptr()
    return crd, value


def _at_once(plan: Plan, pointers: list[int], most: int) -> tuple[Places, Tensor, Tensor]:
    """Count and write in one pass: a unit begins where the one before it ends."""
    counts, start, done = _empty(plan, pointers)
    crd, value = _memory(plan, pointers, None, max(most, 1))  # without memory to write to, it would only count
    total = plan.kernel.run("fill", pointers, plan.sizes_array, 1, start.data_ptr(), done.data_ptr())
    places = _placed(plan, start, counts, total)
    crd, value = crd[:total], value[:total]
    return places, *((crd, value) if total >= _USED * most else (crd.clone(), value.clone()))


def _count(plan: Plan, pointers: list[int], threads: int) -> Places:
    """Find out how many entries each unit will have."""
    counts, start, done = _empty(plan, pointers)
    pointers[plan.slot[names.OUT_CRD]] = pointers[plan.slot[names.OUT]] = 0  # without memory to write to, it counts
    total = plan.kernel.run(
        "count" if plan.kernel.program.scatters else "fill",
        pointers, plan.sizes_array, 4 * threads, start.data_ptr(), done.data_ptr(), threads,
    )  # fmt: skip
    torch.cumsum(done[:-1], 0, out=start[1:])
    return _placed(plan, start, counts, total)


def _placed(plan: Plan, start: Tensor, counts: Tensor, total: int) -> Places:
    """Say where the rows of a result begin."""
    if plan.kernel.program.output.kind != "rows":
        return Places(start, total, counts, None)
    dtype = torch.int32 if total <= _INT32 else torch.int64
    if plan.kernel.row_by_row:
        return Places(start, total, counts, start[: plan.units + 1].to(dtype, copy=True))  # one spare if there are none
    pos = torch.zeros(counts.numel() + 1, dtype=dtype)
    torch.cumsum(counts, 0, dtype=dtype, out=pos[1:])
    return Places(start, total, counts, pos)


def _stored(
    out: Format, number: Tensor, values: Tensor, shape: tuple[int, ...], ascending: bool
) -> tuple[Tensor, Structure]:
    """Store entries by their numbers in the levels of a format: sorted, and those of the same number added up."""
    stack, sizes = out.stack(len(shape)), tuple(out.level_sizes(shape))
    made = None
    if enough(number.numel()):
        target = Target(stack, sizes, tuple(Cut(n) for n in range(len(sizes))), sizes)
        made = restack(number, target, numbers=True)
    if made is not None:
        if made.group is not None:
            values = moved(values, made.where, None, number.numel(), number.numel())
            values = summed(values, made.group.long(), made.entries)
        elif made.where is not None:
            values = moved(values, made.where, None, number.numel(), number.numel())
        return values, Structure(out, shape, made.arrays, values.device)
    if not ascending:
        number, order = torch.sort(number, stable=True)
        values = values[order]
        unique, group = torch.unique_consecutive(number, return_inverse=True)
        if unique.numel() < number.numel():
            number, values = unique, summed(values, group, unique.numel())
    return values, Structure.from_numbers(out, number, shape)
