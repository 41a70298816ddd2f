"""Sparse results: bound the entries of each unit, write them side by side, close the gaps, build the structure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gossamer.formats import Format, Structure

if TYPE_CHECKING:
    from gossamer.ops.plans import Plan

_LOOSE = 1 << 26  # entries: beyond this many, they are counted exactly before memory is taken for them
_INT32 = 2**31 - 1


def assemble(plan: Plan, pointers: list[int], threads: int, values: Sequence[Tensor]) -> tuple[Tensor, Structure]:
    """Run a plan with a sparse result: its values, and its structure."""
    out, rows = plan.out, plan.kernel.program.output.kind == "rows"
    assert isinstance(out, Format)
    parents = math.prod(plan.sizes[v] for v in plan.kernel.program.output.vars[:-1]) if rows else 0
    counts = torch.zeros(parents + 1, dtype=torch.int64)  # a zero, and the entries of each row: their sums will be pos
    pointers[plan.slot["out_count"]] = counts.data_ptr() + counts.element_size()
    units = plan.units
    where = torch.zeros(3, units, dtype=torch.int64)
    start, done, to = (where.data_ptr() + 8 * units * i for i in range(3))

    def run(name: str, crd: int = 0, value: int = 0) -> int:
        pointers[plan.slot["out_crd"]], pointers[plan.slot["out"]] = crd, value
        return plan.kernel.run(name, pointers, plan.sizes_array, 4 * threads, start, done, threads)

    total = run("bound")
    total = run("fill") if total > _LOOSE else total  # without memory to write to, it counts
    plan.kernel.run("starts", (), 0, units, start, done)
    crd, value = torch.empty(total, dtype=torch.int32 if rows else torch.int64), torch.empty(total, dtype=plan.dtype)
    found = run("fill", crd.data_ptr(), value.data_ptr()) if total else 0
    if found < total:  # close the gaps that units left which had fewer entries than they might have had
        loose = (crd, value)
        crd, value = crd.new_empty(found), value.new_empty(found)
        moved = [t.data_ptr() for t in (*loose, crd, value)]
        plan.kernel.run("close", moved, to, units, start, done, threads)
    if rows:
        return value, _from_rows(out, plan.out_shape, crd, counts)
    if plan.choice.method == "sort":
        crd, value = _summed(crd, value)
    return value, Structure.from_numbers(out, crd, plan.out_shape)


def _from_rows(out: Format, shape: Sequence[int], crd: Tensor, counts: Tensor) -> Structure:
    last = len(out.stack(len(shape))) - 1
    small = crd.numel() <= _INT32
    pos = torch.cumsum(counts, 0, dtype=torch.int32 if small else torch.int64)
    return Structure(out, shape, {f"pos{last}": pos, f"crd{last}": crd if small else crd.long()}, crd.device)


def _summed(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort entries by their number and add up those that have the same."""
    keys, order = torch.sort(keys, stable=True)
    values = values[order]
    unique, inverse = torch.unique_consecutive(keys, return_inverse=True)
    if unique.numel() == keys.numel():
        return keys, values
    return unique, values.new_zeros(unique.numel()).index_add_(0, inverse, values)
