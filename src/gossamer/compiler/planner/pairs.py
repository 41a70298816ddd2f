"""A product of several operands as steps over fewer of them: what the planner found, as statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.language.algebra import factors, needed, operands, product
from gossamer.compiler.language.algebra import renumber as renumbered
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Access, Const, Op, Tree
from gossamer.compiler.planner.facts import Facts
from gossamer.compiler.planner.search import MOST_FACTORS, Found, Way, search


class Pair(NamedTuple):
    """A step: a statement over numbered operands (those of the whole, then results of steps), and what it makes.

    ``makes`` is "like" (the entries of an operand), "sparse" or "dense"; the last step makes what the whole does.
    """

    statement: Statement
    operands: tuple[int, ...]
    makes: str
    way: Way


class Planned(NamedTuple):
    """The steps of a product, and what the search found."""

    steps: tuple[Pair, ...]
    found: Found


def plan(statement: Statement, facts: Sequence[Facts], like: int = -1, sparse: bool = False) -> Planned | None:
    """Cut a product into steps; None if one kernel computes it, or if it is no product.

    ``facts`` are those of the operands; ``like`` is the operand whose entries the result has (-1: none), ``sparse``
    says whether the result is stored by its entries.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from gossamer.compiler.language.notation import parse
    >>> a = Facts(("i", "j"), (1000, 1000), 10_000.0, True)
    >>> facts = (a, replace(a, names=("j", "k")), Facts(("k", "l"), (1000, 16), 16e3, False))
    >>> for step in plan(parse("ij,jk,kl->il", (2, 2, 2)), facts).steps:
    ...     print(step.statement, step.operands, step.makes)
    C[j, l] = sum over k of A[j, k] * B[k, l] (1, 2) dense
    C[i, l] = sum over j of A[i, j] * B[j, l] (0, 3) dense
    """
    split = product_of(statement)
    if split is None:
        return None
    trees, number = split
    own = tuple(_facts_of(tree, facts) for tree in trees)
    place = next((n for n, tree in enumerate(trees) if operands(tree) == [like]), -1)
    found = search(own, statement.output, place, sparse)
    kernels = found.way.kernels()
    return Planned(_steps(statement, trees, number, kernels), found) if len(kernels) > 1 else None


def product_of(statement: Statement) -> tuple[list[Tree], Const | None] | None:
    """Return the factors of a statement that the planner may reorder, and their number; None if there are none."""
    if statement.reduce != "sum":
        return None
    trees: list[Tree] = []
    number: float = 1
    for tree in _flat(statement.tree):
        if isinstance(tree, Const):
            number = number * tree.value
        elif len(operands(tree)) != 1:
            return None
        else:
            trees.append(tree)
    if number == 0 or not 2 <= len(trees) <= MOST_FACTORS:
        return None
    return trees, None if number == 1 else Const(number)


def _flat(tree: Tree) -> list[Tree]:
    """Factors, with a minus sign as the number that it is."""
    if isinstance(tree, Op) and tree.name == "neg":
        return [Const(-1), *_flat(tree.args[0])]
    found = factors(tree)
    return found if len(found) == 1 else [f for inner in found for f in _flat(inner)]


def _facts_of(tree: Tree, facts: Sequence[Facts]) -> Facts:
    own = facts[operands(tree)[0]]
    names = dict(zip(own.names, own.sizes, strict=True))  # of a diagonal, each index once
    everywhere = frozenset() in needed(tree, frozenset(operands(tree)))
    sparse = own.sparse and not everywhere
    own = Facts(tuple(names), tuple(names.values()), own.entries, sparse)
    return own if sparse else Facts(own.names, own.sizes, own.places, False)


def _steps(
    statement: Statement, trees: Sequence[Tree], number: Const | None, kernels: Sequence[Way]
) -> tuple[Pair, ...]:
    made: dict[int, int] = {id(way): len(statement.inputs) + n for n, way in enumerate(kernels)}
    steps = []
    for way in kernels:
        numbers, inputs, product_tree = [], [], []  # type: list[int], list[tuple[str, ...]], list[Tree]
        for part in way.parts:
            tree: Tree = Access(0) if part.parts else trees[part.factor]
            numbers.append(made[id(part)] if part.parts else operands(tree)[0])
            inputs.append(part.facts.names if part.parts else statement.inputs[numbers[-1]])
            product_tree.append(renumbered(tree, dict.fromkeys(operands(tree), len(numbers) - 1)))
        last = way is kernels[-1]
        if last and number is not None:
            product_tree.append(number)
        own = Statement(tuple(inputs), way.facts.names, product(product_tree))
        like = any(part.facts.sparse and part.facts.names == way.facts.names for part in way.parts)
        makes = ("like" if like else "sparse") if way.facts.sparse else "dense"
        steps.append(Pair(own, tuple(numbers), makes, way))
    return tuple(steps)
