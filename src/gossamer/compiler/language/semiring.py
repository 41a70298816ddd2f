"""Semirings of extremes: min with sums and nothing stored as infinity, max with sums and minus infinity."""

from __future__ import annotations

from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Access, Const, Op, Tree


def semiring(statement: Statement, fill: float) -> Statement | None:
    """Return a statement over stored entries alone, for operands whose other values are ``fill``; None if it isn't one.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> print(semiring(parse("min: ik + kj -> ij", (2, 2)), float("inf")))
    C[i, j] = bottom over k of plus(A[i, k], B[k, j])
    >>> semiring(parse("max: ik + kj -> ij", (2, 2)), float("inf")) is None
    True
    """
    reduce = {("min", float("inf")): "bottom", ("max", float("-inf")): "top"}.get((statement.reduce, fill))
    tree = _joined(statement.tree)
    return None if reduce is None or tree is None else Statement(statement.inputs, statement.output, tree, reduce)


def _joined(tree: Tree) -> Tree | None:
    """The tree with sums that are there only where all their terms are; None if it has anything but sums."""
    if isinstance(tree, Access):
        return tree
    if isinstance(tree, Const):
        return tree if tree.value != 0 else None  # a number 0 would be taken for nothing
    if tree.name != "+":
        return None
    sides = [_joined(arg) for arg in tree.args]
    return None if None in sides else Op("plus", tuple(side for side in sides if side is not None))
