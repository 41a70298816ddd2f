"""Steps of an einsum on dense tensors alone, on a GPU: one kernel for what torch computes operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.gpu.elementwise import quotients, takes
from gossamer.compiler.language.types import Types
from gossamer.compiler.run.calls import Prepared, run
from gossamer.formats import Dense, Format
from gossamer.ops.ready import ORDINARY, transformed


def elementwise_step(
    statement: Statement, tensors: Sequence[Tensor], out: Format | int | None, kinds: Types
) -> Callable[[Sequence[Tensor]], Tensor] | None:
    """Return a function that computes a statement on dense tensors in one kernel; None if there is none for it."""
    if not (out is None or isinstance(out, Dense)) or statement.summed or transformed(tensors):
        return None
    if any(type(t) not in ORDINARY or t.dtype != kinds.compute or t.dtype != kinds.result for t in tensors):
        return None
    if torch.compiler.is_compiling():
        return None
    sizes = {
        v: n for names, t in zip(statement.inputs, tensors, strict=True) for v, n in zip(names, t.shape, strict=True)
    }
    args = [Prepared(t, None, names).arg() for names, t in zip(statement.inputs, tensors, strict=True)]
    if not takes(statement, args, sizes, tensors[0].dtype):
        return None
    safe = replace(statement, tree=quotients(statement.tree))

    def compute(given: Sequence[Tensor]) -> Tensor:
        prepared = [Prepared(t, None, names) for t, names in zip(given, safe.inputs, strict=True)]
        return run(safe, prepared, sizes, "dense")[0]

    return compute
