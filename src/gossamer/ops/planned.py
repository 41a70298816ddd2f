"""Products of several tensors, planned: facts of the tensors, and the steps that the planner cuts a product into."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.language.steps import Step, steps
from gossamer.compiler.language.sums import innermost
from gossamer.compiler.language.types import types
from gossamer.compiler.planner.facts import Facts, rounded
from gossamer.compiler.planner.pairs import Planned, plan, product_of
from gossamer.compiler.run.flat import whole
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format, Structure
from gossamer.ops.operands import inferred


def facts_of(names: tuple[str, ...], tensor: Tensor) -> Facts:
    """What the planner knows of a tensor: nothing that takes a look at its arrays.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> facts_of(("i", "j"), gs.from_dense(torch.eye(3), gs.CSR()))
    Facts(names=('i', 'j'), sizes=(3, 3), entries=3.0, sparse=True)
    """
    if not isinstance(tensor, SparseTensor):
        return Facts(names, tuple(tensor.shape), float(tensor.numel()), False)
    structure = tensor.structure
    entries = float(math.prod(structure.value_shape))  # padding is walked too
    return Facts(names, tuple(structure.shape), rounded(entries), not structure.plain)


def planned(statement: Statement, tensors: Sequence[Tensor], out: Format | None) -> Planned | None:
    """Return the steps of a product; None if one kernel, or torch, computes it."""
    if len(tensors) < 2 or not all(t.dtype.is_floating_point for t in tensors):
        return None
    if len(tensors) == 2 and not _sums_alone(statement, tensors):
        return None
    if not any(isinstance(t, SparseTensor) and t.dim() for t in tensors) or product_of(statement) is None:
        return None
    form = form_of(statement, tensors, out)
    facts = [facts_of(names, t) for names, t in zip(statement.inputs, tensors, strict=True)]
    return plan(statement, facts, form if isinstance(form, int) else -1, not isinstance(form, Dense))


def patterns_of(tensors: Sequence[Tensor]) -> list[int]:
    """Number the patterns of tensors: equal for equal patterns, -1 for tensors without one, or with padding.

    Those of integers have none: a sum of a product has another type than a contraction.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> a = gs.from_dense(torch.eye(3), gs.CSR())
    >>> patterns_of([a, torch.eye(3), 2 * a])
    [0, -1, 0]
    """
    known: list[Structure] = []
    out = []
    for t in tensors:
        if not isinstance(t, SparseTensor) or not t.dim() or not t.dtype.is_floating_point or not whole(t.structure):
            out.append(-1)
            continue
        place = next((n for n, s in enumerate(known) if s.same(t.structure)), len(known))
        known += [t.structure] if place == len(known) else []
        out.append(place)
    return out


def form_of(statement: Statement, tensors: Sequence[Tensor], out: Format | None) -> int | Format:
    """Return what the result of a product is, whatever its steps: the entries of an operand, or a format."""
    form = inferred(statement, tensors)
    if out is None:
        return form
    return form if isinstance(form, int) and tensors[form].structure.format == out else out  # type: ignore[attr-defined]


def _sums_alone(statement: Statement, tensors: Sequence[Tensor]) -> bool:
    """Has a sparse operand an index that nothing else has?"""
    for k, t in enumerate(tensors):
        others = {v for j, group in enumerate(statement.inputs) if j != k for v in group} | set(statement.output)
        if isinstance(t, SparseTensor) and not set(statement.inputs[k]) <= others:
            return True
    return False


def path_of(statement: Statement, tensors: Sequence[Tensor]) -> list[Step]:
    """Return the steps of a statement: one, which torch computes, where integers wrap around and meet floats."""
    if not tensors[0].dtype.is_floating_point and innermost(statement.tree) is None:
        with contextlib.suppress(TypeError):  # its steps may be more to torch's liking
            kinds = types(statement, [t.dtype for t in tensors])
            if kinds.compute is None and kinds.result.is_floating_point:
                return [Step(statement, tuple(range(len(tensors))))]
    return steps(statement, [isinstance(t, SparseTensor) for t in tensors])
