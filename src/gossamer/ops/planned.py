"""Products of several tensors, planned: facts of the tensors, and the steps that the planner cuts a product into."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from gossamer.compiler import Statement
from gossamer.compiler.planner.facts import Facts, rounded
from gossamer.compiler.planner.pairs import Planned, plan, product_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
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
