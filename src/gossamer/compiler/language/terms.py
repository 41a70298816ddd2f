"""A statement as a sum of terms, each of which has all the indices that it sums.

``"ij,j + i -> i"`` sums j in its first term only (``interpret`` says why), so it is two statements, ``"ij,j->i"`` and
``"i->i"``, and the sum of their results. Statements whose terms all sum the same indices are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.language.algebra import operands, renumber
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Access, Const, Op, Tree


class Part(NamedTuple):
    """A statement over some of the operands."""

    statement: Statement
    operands: tuple[int, ...]


class Split(NamedTuple):
    """Statements, and what is computed of their results: operand -1 of the whole is the first part, -2 the second."""

    parts: tuple[Part, ...]
    whole: Statement
    operands: tuple[int, ...]


def terms(statement: Statement) -> Split | None:
    """Return a statement in terms that sum different indices; None if all sum the same.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> found = terms(parse("2 * (ij + i) -> i", (2, 1)))
    >>> [str(p.statement) for p in found.parts], str(found.whole)
    (['B[i] = sum over j of 2 * A[i, j]', 'B[i] = 2 * A[i]'], 'C[i] = A[i] + B[i]')
    >>> terms(parse("ij + ij -> i", (2, 2))) is None
    True
    """
    if statement.reduce not in ("sum", "mean") or not statement.summed:
        return None
    summed, groups = frozenset(statement.summed), {}  # type: frozenset[str], dict[frozenset[str], Tree]
    for term in _terms(statement.tree, statement.inputs, summed):
        key = _indices(term, statement.inputs) & summed
        groups[key] = term if key not in groups else Op("+", (groups[key], term))
    if list(groups) == [summed]:
        return None
    parts: list[Part] = []
    whole: Tree | None = None
    for tree in groups.values():
        value = tree
        if operands(tree):  # else it is a number
            value = Access(len(parts))
            parts.append(part(tree, statement))
        whole = value if whole is None else Op("+", (whole, value))
    assert whole is not None
    inputs = tuple(p.statement.output for p in parts)
    return Split(tuple(parts), Statement(inputs, statement.output, whole), tuple(-1 - n for n in range(len(parts))))


def part(tree: Tree, statement: Statement) -> Part:
    """Return a statement for a part of the tree, with those indices of the output that it has."""
    used = operands(tree)
    inputs = tuple(statement.inputs[k] for k in used)
    output = tuple(v for v in statement.output if any(v in group for group in inputs))
    tree = renumber(tree, {k: n for n, k in enumerate(used)})
    return Part(Statement(inputs, output, tree, statement.reduce), tuple(used))


def _indices(tree: Tree, inputs: Sequence[tuple[str, ...]]) -> frozenset[str]:
    return frozenset(v for k in operands(tree) for v in inputs[k])


def _terms(tree: Tree, inputs: Sequence[tuple[str, ...]], summed: frozenset[str]) -> list[Tree]:
    """Multiply out, as far as terms that sum different indices stand inside a product."""
    if isinstance(tree, (Access, Const)) or tree.name not in ("+", "-", "neg", "*"):
        return [tree]
    sides = [_terms(arg, inputs, summed) for arg in tree.args]
    if all(len({_indices(t, inputs) & summed for t in side}) < 2 for side in sides):
        alike = len({_indices(arg, inputs) & summed for arg in tree.args}) < 2
        if tree.name in ("neg", "*") or alike:
            return [tree]
    if tree.name == "*":
        return [Op("*", (a, b)) for a in sides[0] for b in sides[1]]
    if tree.name == "neg":
        return [Op("neg", (t,)) for t in sides[0]]
    return [*sides[0], *(sides[1] if tree.name == "+" else [Op("neg", (t,)) for t in sides[1]])]
