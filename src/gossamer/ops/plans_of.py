"""The plans of an einsum before it is computed: for gs.explain and gs.compile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler import Statement, parse
from gossamer.compiler.language.types import types
from gossamer.compiler.language.zips import zipped
from gossamer.compiler.run.calls import AnyPlan, plan_for
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, as_format
from gossamer.ops import operands
from gossamer.ops.forms import form_for
from gossamer.ops.planned import form_of, path_of, patterns_of, planned
from gossamer.ops.windows import plainly

Plans = list[AnyPlan]


def plan_of(expression: str, tensors: Sequence[Tensor], out: Format | None = None) -> AnyPlan | None:
    """Return the plan by which a call would be computed, of its first step if there are several; None if torch does."""
    return next(iter(plans_of(expression, tensors, out)), None)


def plans_of(expression: str, tensors: Sequence[Tensor], out: Format | None = None) -> Plans:
    """Return the plans of a call's steps, as far as their operands are known before; none if torch computes it."""
    expression, tensors = plainly(expression, tensors)
    statement = parse(expression, [t.dim() for t in tensors])
    known: list[Tensor | None] = [t.detach() for t in tensors]
    found: Plans = []
    target = None if out is None else as_format(out)
    path = path_of(statement, tensors)
    for step in path:
        own = [known[n] for n in step.operands]
        known.append(_stand_in_for_all(expression, step.statement, own, target if step is path[-1] else None, found))
    return found


def _stand_in_for_all(
    expression: str, statement: Statement, given: Sequence[Tensor | None], out: Format | None, plans: Plans
) -> Tensor | None:
    """As :func:`_stand_in`, of the steps into which a statement is cut: what einsum does, without values."""
    own = [t for t in given if t is not None]
    if len(own) < len(given):
        return None
    form = form_of(statement, own, out)
    if (split := zipped(statement, patterns_of(own))) is not None:
        part = split.parts[0]
        made = _stand_in(expression, part.statement, [own[k] for k in part.operands], 0, plans)
        rest = [own[k] if k >= 0 else made for k in split.operands]
        return _stand_in_for_all(expression, split.whole, rest, None if isinstance(form, int) else form, plans)
    pairs = planned(statement, own, out)
    if pairs is None:
        return _stand_in(expression, statement, own, out, plans)
    known: list[Tensor | None] = list(own)
    for pair in pairs.steps:
        parts = [t for n in pair.operands if (t := known[n]) is not None]
        makes: Format | int | None = Dense() if pair.makes == "dense" else None
        if pair is pairs.steps[-1]:
            makes = pair.operands.index(form) if isinstance(form, int) else form
        missing = len(parts) < len(pair.operands)
        known.append(None if missing else _stand_in(expression, pair.statement, parts, makes, plans))
    return known[-1]


def _stand_in(
    expression: str, statement: Statement, tensors: Sequence[Tensor], out: Format | int | None, plans: Plans
) -> Tensor | None:
    """Append the plan of a statement; return a tensor like its result, or None if its pattern is not known."""
    kinds = types(statement, [t.dtype for t in tensors])
    sizes = operands.sizes_of(expression, statement, tensors)
    shape = [sizes[v] for v in statement.output]
    if not any(isinstance(t, SparseTensor) for t in tensors) or kinds.compute is None:
        return torch.empty(shape, dtype=kinds.result, device=tensors[0].device)
    with torch.no_grad():
        inner, prepared = operands.prepare(statement, tensors, sizes, operands.stored_type(tensors, kinds.compute))
        form, _ = form_for(inner, prepared, out)
        dtype = prepared[0].values.dtype
        plans.append(plan_for(inner, [p.arg() for p in prepared], sizes, dtype, form, tensors[0].device))
    if form == "dense":
        return torch.empty(shape, dtype=kinds.result, device=tensors[0].device)
    structure = prepared[form].structure if isinstance(form, int) else None
    if structure is None:
        return None
    return SparseTensor(torch.empty(structure.value_shape, device=structure.device), structure)
