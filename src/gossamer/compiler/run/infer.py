"""What the result of an einsum is: dense, the entries of an operand, or a format of its own."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import needed
from gossamer.formats import CSF, CSR, Dense, Format, Structure
from gossamer.formats.levels import Compressed, Singleton
from gossamer.formats.levels import Dense as DenseLevel

_FEW, _FAR = 1 << 20, 16  # rows that may always be dense; how many there may be for each that can have entries


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
        fits = natural(format, len(statement.output)) and format.general() == format
        if len(statement.inputs[k]) == len(statement.output) and fits:
            return _narrowed(format, statement, structures, points)
    return _narrowed(CSR() if len(statement.output) == 2 else CSF(), statement, structures, points)


def _narrowed(
    format: Format, statement: Statement, structures: Sequence[Structure | None], points: Iterable[frozenset[int]]
) -> Format:
    """Return the format, with compressed levels for dense ones that would have far more rows than the result can fill.

    An index takes as many values as the operands that have it have entries, at most: that bounds the rows of a term.
    """
    levels = format.stack(len(statement.output))
    outer = next((n for n, level in enumerate(levels) if not level.full), len(levels))
    rows = (statement.output if format.order is None else tuple(statement.output[d] for d in format.order))[:outer]
    known = [(statement.inputs[k], s) for k, s in enumerate(structures) if s is not None]
    sizes = {v: max(size, 1) for names, s in known for v, size in zip(names, s.shape, strict=True)}
    count = math.prod(sizes[v] for v in rows)
    if count <= _FEW:
        return format
    filled = 0
    for point in points:
        having = [(statement.inputs[k], structures[k]) for k in point]
        filled += math.prod(min(sizes[v], *(_places(s) for names, s in having if s and v in names)) for v in rows)
    if count <= _FEW + _FAR * filled:
        return format
    return Format(*(Compressed(),) * outer, *levels[outer:], order=format.order).named()


def _places(structure: Structure) -> int:
    """How many entries there are, padding included: known without a look at the arrays, so in a trace too."""
    return math.prod(structure.value_shape)
