"""Zipping: operands with one pattern are combined entry by entry, before anything is walked.

``"ij,ij->i"`` of two operands with equal patterns would walk both and compare coordinates. Their product is a loop over
values instead, and its sum walks one pattern.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.compiler.language.algebra import factors, needed, operands, product, renumber
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.terms import Part, Split
from gossamer.compiler.language.tree import Access, Op, Tree


def zipped(statement: Statement, patterns: Sequence[int]) -> Split | None:
    """Take out a part of a statement whose operands have one pattern; None if there is none.

    ``patterns`` gives operands of equal patterns equal numbers, and -1 to those that have none. What is kept
    complete, or summed up completely, is one loop over values already.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> found = zipped(parse("ij,j,ij->i", (2, 1, 2)), [0, -1, 0])
    >>> print(found.parts[0].statement, "|", found.whole, found.operands)
    C[i, j] = A[i, j] * B[i, j] | C[i] = sum over j of A[j] * B[i, j] (1, -1)
    >>> zipped(parse("ij,ij->", (2, 2)), [0, 0]) is None
    True
    """
    if statement.reduce not in ("sum", "mean"):
        return None
    part = _part(statement.tree, statement, patterns)
    if part is None:
        return None
    used = operands(part)
    own = statement.inputs[used[0]]
    if len(used) == len(statement.inputs) and statement.output in (own, ()):
        return None
    inner = Statement((own,) * len(used), own, renumber(part, {k: n for n, k in enumerate(used)}))
    whole = _put(statement.tree, part, Access(-1))
    left = [k for k in operands(whole) if k >= 0]  # an operand of the part may stand elsewhere, too
    inputs = (*(statement.inputs[k] for k in left), own)
    tree = renumber(whole, {-1: len(left), **{k: n for n, k in enumerate(left)}})
    return Split((Part(inner, tuple(used)),), Statement(inputs, statement.output, tree, statement.reduce), (*left, -1))


def _part(tree: Tree, statement: Statement, patterns: Sequence[int]) -> Tree | None:
    """The largest part over two or more operands of one pattern, with the same indices."""
    if not isinstance(tree, Op):
        return None
    if tree.name == "*":
        alike: dict[object, list[Tree]] = {}
        for factor in factors(tree):
            if (key := _pattern(factor, statement, patterns)) is not None:
                alike.setdefault(key, []).append(factor)
        most = max(alike.values(), key=lambda group: sum(len(operands(f)) for f in group), default=[])
        if sum(len(operands(f)) for f in most) > 1:
            return product(most)
    elif len(operands(tree)) > 1 and _pattern(tree, statement, patterns) is not None:
        return tree
    inside = factors(tree) if tree.name == "*" else tree.args
    return next((found for arg in inside if (found := _part(arg, statement, patterns)) is not None), None)


def _pattern(tree: Tree, statement: Statement, patterns: Sequence[int]) -> object | None:
    """The pattern and the indices that all operands of a tree have, if it is zero where they have no entry."""
    used = operands(tree)
    found = {(patterns[k], statement.inputs[k]) for k in used}
    if len(found) != 1 or patterns[used[0]] < 0 or len(set(statement.inputs[used[0]])) < len(statement.inputs[used[0]]):
        return None
    return None if frozenset() in needed(tree, frozenset(used)) else next(iter(found))


def _put(tree: Tree, part: Tree, new: Tree) -> Tree:
    """The tree with one operand in the place of the part that was taken out."""
    if tree == part:
        return new
    if not isinstance(tree, Op):
        return tree
    if tree.name == "*":
        own = [f for f in factors(tree) if set(operands(f)) & set(operands(part))]
        if product(own) == part:
            return product([*(f for f in factors(tree) if f not in own), new])
    return Op(tree.name, tuple(_put(arg, part, new) for arg in tree.args))
