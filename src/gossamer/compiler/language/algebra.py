"""Trees, rewritten and asked.

Three questions are asked of a tree, and each is a short recursion here: what is left of it where some operands are
zero (:func:`without`), how it changes with one operand (:func:`derivative`), and what it is worth (:func:`evaluate`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gossamer.compiler.language.functions import FUNCTIONS, JOINS, NOT_ZERO_AT_ZERO, apply
from gossamer.compiler.language.tree import ONE, ZERO, Access, Const, Op, Tree


def product(trees: Sequence[Tree]) -> Tree:
    """Multiply trees, leaving out ones.

    Examples
    --------
    >>> print(product([Access(0), ONE, Access(2)]))
    A * C
    """
    factors = [t for t in trees if t != ONE]
    out: Tree = factors[0] if factors else ONE
    for factor in factors[1:]:
        out = Op(
            "*",
            (
                out,
                factor,
            ),
        )
    return ZERO if any(f == ZERO for f in factors) else out


def factors(tree: Tree) -> list[Tree]:
    """Return the factors of a product.

    Examples
    --------
    >>> [str(f) for f in factors(Op("*", (Op("*", (Access(0), Const(2.0))), Op("+", (Access(1), Access(2))))))]
    ['A', '2', 'B + C']
    """
    if isinstance(tree, Op) and tree.name == "*":
        return [f for arg in tree.args for f in factors(arg)]
    return [tree]


def operands(tree: Tree) -> list[int]:
    """Return the operands of a tree, each once, in order."""
    if isinstance(tree, Access):
        return [tree.operand]
    return [] if isinstance(tree, Const) else list(dict.fromkeys(k for arg in tree.args for k in operands(arg)))


def without(tree: Tree, zero: frozenset[int]) -> Tree:
    """Return what is left of a tree where these operands are zero.

    Examples
    --------
    >>> tree = Op("+", (Op("*", (Access(0), Access(1))), Access(2)))
    >>> print(without(tree, frozenset({1})))
    C
    """
    if isinstance(tree, Access):
        return ZERO if tree.operand in zero else tree
    if isinstance(tree, Const):
        return tree
    args = tuple(without(arg, zero) for arg in tree.args)
    if (tree.name in JOINS and ZERO in args) or (tree.name == "/" and args[0] == ZERO):
        return ZERO
    if tree.name == "where" and args[0] == ZERO:
        return args[2]
    if tree.name in ("+", "-") and args[1] == ZERO:
        return args[0]
    if tree.name == "+" and args[0] == ZERO:
        return args[1]
    if tree.name == "-" and args[0] == ZERO:
        return Op("neg", (args[1],))
    if tree.name not in NOT_ZERO_AT_ZERO and all(a == ZERO for a in args):
        return ZERO
    return Op(tree.name, args)


def needed(tree: Tree, among: frozenset[int]) -> set[frozenset[int]]:
    """Return the sets of operands, of those given, whose entries make the tree other than zero.

    A product needs both sides (intersection), a sum either (union). The empty set: it may be so everywhere. The union
    of two of the sets is among them too, so that where both are present, so is the set that says so.

    Examples
    --------
    >>> tree = Op("+", (Op("*", (Access(0), Access(1))), Access(2)))
    >>> sorted(map(sorted, needed(tree, frozenset({0, 1, 2}))))
    [[0, 1], [0, 1, 2], [2]]
    """
    if isinstance(tree, Access):
        return {frozenset({tree.operand} & among)}
    if isinstance(tree, Const):
        return set() if tree == ZERO else {frozenset()}
    first, *others = (needed(arg, among) for arg in tree.args)
    for side in others:
        both = {x | y for x in first for y in side}
        first = both if tree.name in JOINS else first | both if tree.name == "/" else first | side | both
    found = first | {frozenset[int]()} if tree.name in NOT_ZERO_AT_ZERO else first
    return found - {frozenset[int]()} if frozenset() in found and _vanishes(tree, among) else found


def _vanishes(tree: Tree, among: frozenset[int]) -> bool:
    """Is it zero where none of these has an entry, as ``ij > 1`` is?"""
    left = without(tree, among)
    return not operands(left) and evaluate(left, ()) == 0


def outside(tree: Tree, node: Tree | None = None) -> Tree:
    """Return the tree without what is inside its sums, or of this one alone: with a number in their place.

    Examples
    --------
    >>> print(outside(Op("*", (Access(0), Op("sum", (Access(1),))))))
    A * 1
    """
    if isinstance(tree, Op) and (tree.name == "sum" if node is None else tree == node):
        return ONE
    return Op(tree.name, tuple(outside(a, node) for a in tree.args)) if isinstance(tree, Op) else tree


def substituted(tree: Tree, args: Sequence[Tree]) -> Tree:
    """Return the tree with others in the place of its operands.

    Examples
    --------
    >>> print(substituted(Op("tanh", (Access(0),)), [Op("+", (Access(1), Access(2)))]))
    tanh(B + C)
    """
    if isinstance(tree, Access):
        return args[tree.operand]
    return Op(tree.name, tuple(substituted(a, args) for a in tree.args)) if isinstance(tree, Op) else tree


def derivative(tree: Tree, k: int) -> Tree:
    """Return how the tree changes with operand k (which appears once).

    Examples
    --------
    >>> print(derivative(Op("*", (Access(0), Op("square", (Access(1),)))), 1))
    A * 2 * B
    """
    if isinstance(tree, Access):
        return ONE if tree.operand == k and not tree.stored else ZERO
    if isinstance(tree, Const):
        return ZERO
    parts = []
    for arg, slope in zip(tree.args, FUNCTIONS[tree.name].slopes(*tree.args), strict=True):
        inner = derivative(arg, k)
        if inner != ZERO and slope != ZERO:
            parts.append(product([slope, inner]))
    out = parts[0] if parts else ZERO
    for part in parts[1:]:
        out = Op(
            "+",
            (
                out,
                part,
            ),
        )
    return out


def renumber(tree: Tree, to: dict[int, int]) -> Tree:
    """Give operands other numbers."""
    if isinstance(tree, Access):
        return Access(to[tree.operand], tree.stored)
    return tree if isinstance(tree, Const) else Op(tree.name, tuple(renumber(a, to) for a in tree.args))


def evaluate(tree: Tree, values: Sequence[Any]) -> Any:
    """Return the tree's value for tensors that broadcast: the meaning of a tree, and the oracle of what is compiled.

    Examples
    --------
    >>> import torch
    >>> evaluate(Op("-", (Access(0), Const(1.0))), [torch.tensor([1.0, 3.0])])
    tensor([0., 2.])
    """
    if isinstance(tree, Access):
        return (values[tree.operand] != 0).to(values[tree.operand].dtype) if tree.stored else values[tree.operand]
    if isinstance(tree, Const):
        return tree.value  # a number to torch's rules of types: 2 leaves integers as they are, 0.5 doesn't
    return apply(tree.name, [evaluate(arg, values) for arg in tree.args])
