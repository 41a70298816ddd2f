"""What the result of an einsum is: dense, the entries of an operand, or a format of its own."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import needed
from gossamer.formats import CSF, CSR, Dense, Format, Structure
from gossamer.formats.levels import Compressed, Singleton
from gossamer.formats.levels import Dense as DenseLevel


def natural(format: Format, ndim: int) -> bool:
    """Is the format an order of dimensions with one value an entry, as the compiler writes them?"""
    levels = format.stack(ndim)
    known = all(isinstance(level, (Compressed, Singleton)) or type(level) is DenseLevel for level in levels)
    return known and not format.own_map and format.groups(ndim) == ndim and format.any_pattern and ndim > 0


def infer(statement: Statement, structures: Sequence[Structure | None]) -> int | Format:
    """Choose the form of a result; the rule is in the docstring of :func:`gossamer.einsum`."""
    sparse = frozenset(k for k, s in enumerate(structures) if s is not None)
    points = needed(statement.tree, sparse)
    always = frozenset.intersection(*points) if points else frozenset()
    same = [k for k in sorted(always) if statement.inputs[k] == statement.output and statement.reduce == "sum"]
    patterns = {id(structures[k]) for k in same if not structures[k].plain}  # type: ignore[union-attr]
    if same and len(patterns) < 2:  # with two, the result has the entries that both have
        return next((k for k in same if id(structures[k]) in patterns), same[0])
    from_sparse = all(set(statement.output) <= {v for k in point for v in statement.inputs[k]} for point in points)
    if len(statement.output) < 2 or not from_sparse or not points or statement.reduce != "sum":
        return Dense()
    if all(structures[k].plain for k in sparse):  # type: ignore[union-attr]
        return Dense()
    for k in sorted(sparse):
        format = structures[k].format  # type: ignore[union-attr]
        if len(statement.inputs[k]) == len(statement.output) and natural(format, len(statement.output)):
            return format
    return CSR() if len(statement.output) == 2 else CSF()
