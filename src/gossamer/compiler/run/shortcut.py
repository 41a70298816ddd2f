"""The shortest way through a plan: a small dense result, from values as they are. What other calls need is left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.run.args import strides_in

if TYPE_CHECKING:
    from gossamer.compiler.run.plans import Plan

_FIRST = 4  # arguments before the arrays: pool, threads, chunks, sizes


class Shortcut(NamedTuple):
    """The arguments of a kernel, where the addresses of the values belong, and what calls it.

    ``finish`` takes a copy of ``base`` with these addresses, and one of the values; it returns the result.
    """

    base: list[int]
    slots: list[int]
    finish: Callable[[list[int], Tensor], Tensor]


def shortcut(plan: Plan) -> Shortcut:
    """Return the shortcut of a plan. All that it needs is in local variables: looking it up takes a microsecond."""
    kernel, empty, parts = plan.kernel, None if plan.kernel.covers else plan.empty, plan.parts
    pack, fill, out_slot = kernel.packed, kernel.fill, _FIRST + plan.out_slot
    shape, strides = plan.out_shape, strides_in(plan.out_shape, range(len(plan.out_shape)))
    alone, most, get_num_threads = plan.alone, plan.threads, torch.get_num_threads

    def finish(packed: list[int], like: Tensor) -> Tensor:
        out = like.new_empty_strided(shape, strides)  # half the time of torch.empty
        if empty is not None:
            out.fill_(empty)
        packed[out_slot] = out.data_ptr()
        if not alone:
            packed[1] = threads = min(get_num_threads(), most)
            packed[2] = parts or 4 * threads
        fill(pack(*packed))
        return out

    base = [kernel.pool, 1, parts or 4, plan.sizes_at, *plan.pointers]
    return Shortcut(base, [_FIRST + slot for slot in plan.value_slots], finish)
