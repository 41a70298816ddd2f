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

from gossamer.formats import Format, Structure
from gossamer.ops.memory import fresh

if TYPE_CHECKING:
    from gossamer.ops.plans import Plan

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
    pointers[slot["out_count"]] = counts.data_ptr()
    pointers[slot["out_crd"]], pointers[slot["out"]] = crd.data_ptr(), value.data_ptr()
    if total:
        plan.kernel.run("fill", pointers, plan.sizes_array, 4 * threads, start.data_ptr(), 0, threads)
    if pos is not None:
        last = len(program.output.vars) - 1
        crd = crd if total <= _INT32 else crd.long()  # both arrays have one type
        return value, Structure(out, plan.out_shape, {f"pos{last}": pos, f"crd{last}": crd}, crd.device)
    if plan.choice.method == "sort":
        crd, value = _summed(crd, value)
    return value, Structure.from_numbers(out, crd, plan.out_shape)


def _count(plan: Plan, pointers: list[int], threads: int) -> Places:
    """Find out how many entries each unit will have."""
    program = plan.kernel.program
    rows = program.output.kind == "rows"
    counts = torch.zeros(math.prod(plan.sizes[v] for v in program.output.vars[:-1]) if rows else 1, dtype=torch.int64)
    start, done = torch.zeros(2, max(plan.units, 1), dtype=torch.int64).unbind()
    pointers[plan.slot["out_count"]] = counts.data_ptr()
    pointers[plan.slot["out_crd"]] = pointers[plan.slot["out"]] = 0  # without memory to write to, it counts
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


def _summed(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort entries by their number and add up those that have the same."""
    keys, order = torch.sort(keys, stable=True)
    values = values[order]
    unique, inverse = torch.unique_consecutive(keys, return_inverse=True)
    if unique.numel() == keys.numel():
        return keys, values
    return unique, values.new_zeros(unique.numel()).index_add_(0, inverse, values)
