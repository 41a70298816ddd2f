"""Sums inside an expression: ``relu(sum(ik * kj) + j)``, where they stand and what they sum.

A sum takes in the indices that are neither in the output nor outside it. ``relu(nm,mk), ko -> no`` sums m inside and
k outside the function.
"""

from __future__ import annotations

from gossamer.compiler.language.algebra import operands, outside, renumber
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.terms import Split, part
from gossamer.compiler.language.tree import Access, Op, Tree


def kept(statement: Statement, node: Op) -> tuple[str, ...]:
    """Return the indices inside a sum that it leaves: those of the output, and those outside it.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> s = parse("relu(nm,mk), ko -> no", (2, 2, 2))
    >>> kept(s, innermost(s.tree))
    ('n', 'k')
    """
    others = {v for k in operands(outside(statement.tree, node)) for v in statement.inputs[k]} | set(statement.output)
    own = dict.fromkeys(v for k in operands(node) for v in statement.inputs[k])
    return tuple(v for v in own if v in others)


def innermost(tree: Tree) -> Op | None:
    """Return a sum that has no other one inside; None if there is none."""
    if not isinstance(tree, Op):
        return None
    found = next((node for arg in tree.args if (node := innermost(arg)) is not None), None)
    return tree if found is None and tree.name == "sum" else found


def simplified(statement: Statement) -> Statement:
    """Return the statement without sums that have nothing to sum.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> print(parse("relu(i,i) -> i", (1, 1)), "|", parse("relu(i,i) ->", (1, 1)))
    C[i] = relu(A[i] * B[i]) | C[] = relu(sum(A[i] * B[i]))
    """

    def without(tree: Tree) -> Tree:
        if not isinstance(tree, Op):
            return tree
        if tree.name == "sum":
            inside = {v for k in operands(tree) for v in statement.inputs[k]}
            if inside <= set(kept(statement, tree)):
                return without(tree.args[0])
        return Op(tree.name, tuple(without(arg) for arg in tree.args))

    return Statement(statement.inputs, statement.output, without(statement.tree), statement.reduce)


def cut(statement: Statement) -> Split | None:
    """Take the innermost sum out: a statement of its own, and the rest over its result; None if there is none.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> found = cut(parse("relu(nm,mk + k) -> nk", (2, 2, 1)))
    >>> print(found.parts[0].statement, "|", found.whole)
    D[n, k] = sum over m of A[n, m] * B[m, k] + C[k] | B[n, k] = relu(A[n, k])
    """
    node = innermost(statement.tree)
    if node is None:
        return None
    inner = Statement(statement.inputs, kept(statement, node), node.args[0])
    own = part(node.args[0], inner)
    left = operands(outside(statement.tree, node))
    number = {-1: len(left), **{k: n for n, k in enumerate(left)}}
    whole = Statement(
        (*(statement.inputs[k] for k in left), own.statement.output),
        statement.output,
        renumber(_put(statement.tree, node, Access(-1)), number),
        statement.reduce,
    )
    return Split((own,), whole, (*left, -1))


def _put(tree: Tree, old: Tree, new: Tree) -> Tree:
    if tree == old:
        return new
    return Op(tree.name, tuple(_put(arg, old, new) for arg in tree.args)) if isinstance(tree, Op) else tree
