"""Sparse results: count the entries of each unit, write them where they will stay, build the structure.

How many entries a result has, and where each row begins, follows from the patterns alone. It is counted once, in a pass
that only marks coordinates, and kept with the plan: the next product of the same patterns, with any values, is one
pass.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.reading import Target
from gossamer.compiler.convert.restack import enough, restack
from gossamer.compiler.loops import names
from gossamer.formats import Format, Structure
from gossamer.formats.values import summed

if TYPE_CHECKING:
    from gossamer.compiler.run.plans import Plan

_INT32 = 2**31 - 1


class Places(NamedTuple):
    """Where the entries of a result go."""

    start: Tensor  # the first of each unit
    total: int
    counts: Tensor  # entries of each row, written anew by each call: the same numbers
    pos: Tensor | None  # where each row begins; None for results that are not rows


def assemble(plan: Plan, pointers: list[int], threads: int) -> tuple[Tensor, Structure]:
    """Run a plan with a sparse result: its values, and its structure."""
    out, program = plan.out, plan.kernel.program
    assert isinstance(out, Format)
    places = plan.places
    if places is None:
        places = plan.places = _count(plan, pointers, threads)
    start, total, counts, pos = places
    crd = fresh(total, torch.int64 if pos is None else torch.int32)
    value = fresh(total, plan.dtype)
    slot = plan.slot
    pointers[slot[names.OUT_COUNT]] = counts.data_ptr()
    pointers[slot[names.OUT_CRD]], pointers[slot[names.OUT]] = crd.data_ptr(), value.data_ptr()
    if total:
        plan.kernel.run("fill", pointers, plan.sizes_array, 4 * threads, start.data_ptr(), 0, threads)
    if pos is not None:
        last = len(program.output.vars) - 1
        crd = crd if total <= _INT32 else crd.long()  # both arrays have one type
        return value, Structure(out, plan.out_shape, {f"pos{last}": pos, f"crd{last}": crd}, crd.device)
    return _stored(out, crd, value, plan.out_shape, plan.choice.method != "sort")


def _count(plan: Plan, pointers: list[int], threads: int) -> Places:
    """Find out how many entries each unit will have."""
    program = plan.kernel.program
    rows = program.output.kind == "rows"
    counts = torch.zeros(math.prod(plan.sizes[v] for v in program.output.vars[:-1]) if rows else 1, dtype=torch.int64)
    start, done = torch.zeros(2, max(plan.units, 1), dtype=torch.int64).unbind()
    pointers[plan.slot[names.OUT_COUNT]] = counts.data_ptr()
    pointers[plan.slot[names.OUT_CRD]] = pointers[plan.slot[names.OUT]] = 0  # without memory to write to, it counts
    total = plan.kernel.run(
        "count" if program.scatters else "fill",
        pointers, plan.sizes_array, 4 * threads, start.data_ptr(), done.data_ptr(), threads,
    )  # fmt: skip
    torch.cumsum(done[:-1], 0, out=start[1:])
    pos = None
    if rows:
        pos = torch.zeros(counts.numel() + 1, dtype=torch.int32 if total <= _INT32 else torch.int64)
        torch.cumsum(counts, 0, dtype=pos.dtype, out=pos[1:])
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
