"""Sparse results: bound the entries of each unit, write them side by side, close the gaps, build the structure."""

from __future__ import annotations

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
    out = plan.out
    assert isinstance(out, Format)
    rows = plan.kernel.program.output.kind == "rows"
    parents = _product(plan.sizes[v] for v in plan.kernel.program.output.vars[:-1]) if rows else 0
    counts = torch.zeros(parents + 1, dtype=torch.int64)
    start, total = _starts(plan, pointers, threads, counts)
    crd = torch.empty(total, dtype=torch.int32 if rows else torch.int64)
    value = torch.empty(total, dtype=plan.dtype)
    done = torch.zeros(plan.units, dtype=torch.int64)
    _run(plan, "fill", pointers, threads, start, done, crd, value, counts)
    crd, value = _close(plan, threads, crd, value, start, done)
    if rows:
        return value, _from_rows(out, plan.out_shape, crd, counts)
    if plan.choice.method == "sort":
        crd, value = _summed(crd, value)
    return value, Structure.from_numbers(out, crd, plan.out_shape)


def _starts(plan: Plan, pointers: list[int], threads: int, counts: Tensor) -> tuple[Tensor, int]:
    """Where each unit may begin to write, and how much there may be in all."""
    none, done = torch.zeros(plan.units + 1, dtype=torch.int64), torch.zeros(plan.units, dtype=torch.int64)
    empty = torch.empty(0)
    _run(plan, "bound", pointers, threads, none, done, empty, empty, counts)
    if int(done.sum()) > _LOOSE:
        _run(plan, "fill", pointers, threads, none, done, empty, empty, counts)
    start = torch.zeros(plan.units + 1, dtype=torch.int64)
    torch.cumsum(done, 0, out=start[1:])
    return start, int(start[-1])


def _run(
    plan: Plan,
    name: str,
    pointers: list[int],
    threads: int,
    start: Tensor,
    done: Tensor,
    crd: Tensor,
    value: Tensor,
    counts: Tensor,
) -> None:
    slot = plan.slot
    pointers[slot["out_crd"]], pointers[slot["out"]] = crd.data_ptr(), value.data_ptr()
    pointers[slot["out_count"]] = counts.data_ptr()
    plan.kernel.run(name, pointers, plan.sizes_array, 4 * threads, start.data_ptr(), done.data_ptr(), threads)


def _close(plan: Plan, threads: int, crd: Tensor, value: Tensor, start: Tensor, done: Tensor) -> tuple[Tensor, Tensor]:
    """Close the gaps that units left which had fewer entries than they might have had."""
    total = int(done.sum())
    if total == crd.numel():
        return crd, value
    to = torch.cumsum(done, 0) - done
    whole, values = crd.new_empty(total), value.new_empty(total)
    pointers = [crd.data_ptr(), value.data_ptr(), whole.data_ptr(), values.data_ptr()]
    plan.kernel.run("close", pointers, to.data_ptr(), plan.units, start.data_ptr(), done.data_ptr(), threads)
    return whole, values


def _from_rows(out: Format, shape: Sequence[int], crd: Tensor, counts: Tensor) -> Structure:
    pos = torch.zeros(counts.numel(), dtype=torch.int64)
    torch.cumsum(counts[:-1], 0, out=pos[1:])
    last = len(out.stack(len(shape))) - 1
    small = crd.numel() <= _INT32
    arrays = {f"pos{last}": pos.int() if small else pos, f"crd{last}": crd if small else crd.long()}
    return Structure(out, shape, arrays, crd.device)


def _summed(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Sort entries by their number and add up those that have the same."""
    keys, order = torch.sort(keys, stable=True)
    values = values[order]
    unique, inverse = torch.unique_consecutive(keys, return_inverse=True)
    if unique.numel() == keys.numel():
        return keys, values
    return unique, values.new_zeros(unique.numel()).index_add_(0, inverse, values)


def _product(sizes: object) -> int:
    out = 1
    for size in sizes:  # type: ignore[attr-defined]
        out *= size
    return out
