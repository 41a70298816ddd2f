"""A statement as steps: statements that a kernel can compute, each over operands and results of steps before.

A step's terms all sum the same indices (``terms``), and it has few sums of sparse operands: the walk over k of them
together has 2^k - 1 cases, so longer sums are cut into halves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from gossamer.compiler.language import sums
from gossamer.compiler.language.algebra import operands, renumber
from gossamer.compiler.language.functions import JOINS, NOT_ZERO_AT_ZERO
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.terms import Split, part, terms
from gossamer.compiler.language.tree import Access, Const, Op, Tree

CASES = 7  # of a walk: a sum of three sparse operands


class Step(NamedTuple):
    """A statement over numbered operands: first those of the whole, then the results of the steps."""

    statement: Statement
    operands: tuple[int, ...]


def steps(statement: Statement, sparse: Sequence[bool]) -> list[Step]:
    """Cut a statement into steps; the last one has its result. ``sparse`` says which operands are.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> for step in steps(parse("ij,j + i -> i", (2, 1, 1)), [True, False, False]):
    ...     print(step.statement, step.operands)
    C[i] = sum over j of A[i, j] * B[j] (0, 1)
    B[i] = A[i] (2,)
    C[i] = A[i] + B[i] (3, 4)
    """
    return list(_steps(statement, tuple(sparse)))


@lru_cache(maxsize=1024)
def _steps(statement: Statement, sparse: tuple[bool, ...]) -> tuple[Step, ...]:
    out: list[Step] = []
    known = list(sparse)

    def add(statement: Statement, numbers: tuple[int, ...]) -> int:
        """Append the steps of a statement; return the number of its result."""
        split = sums.cut(statement) or terms(statement) or _narrowed(statement, [known[n] for n in numbers])
        if split is not None:
            made = [add(p.statement, tuple(numbers[k] for k in p.operands)) for p in split.parts]
            return add(split.whole, tuple(numbers[k] if k >= 0 else made[-1 - k] for k in split.operands))
        out.append(Step(statement, numbers))
        known.append(any(known[n] for n in numbers))
        return len(known) - 1

    add(statement, tuple(range(len(statement.inputs))))
    return tuple(out)


def cases(tree: Tree, sparse: Sequence[bool]) -> int:
    """Return how many sets of sparse operands may be present where the tree is not zero, at most.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> [cases(parse(text, (1, 1, 1)).tree, [True] * 3) for text in ("i,i,i->i", "i + i + i -> i")]
    [1, 7]
    """
    if not isinstance(tree, Op) or not any(sparse[k] for k in operands(tree)):
        return 1
    inside = [cases(arg, sparse) for arg in tree.args]
    if tree.name in JOINS:
        return inside[0] * inside[1]
    if len(inside) == 1:
        return inside[0] + (tree.name in NOT_ZERO_AT_ZERO)
    return (inside[0] + 1) * (inside[1] + 1) - 1


def _narrowed(statement: Statement, sparse: Sequence[bool]) -> Split | None:
    """Cut a statement with too many cases: a sum into halves, or a part of the tree into a step of its own."""
    tree = statement.tree
    if cases(tree, sparse) <= CASES:
        return None
    chain = _chain(tree) if statement.reduce in ("sum", "mean") else [tree]
    if len(chain) > 1:
        halves = [_sum(chain[: len(chain) // 2]), _sum(chain[len(chain) // 2 :])]
        parts = tuple(part(half, statement) for half in halves)
        whole = Statement(tuple(p.statement.output for p in parts), statement.output, Op("+", (Access(0), Access(1))))
        return Split(parts, whole, (-1, -2))
    inner = [t for t in _inside(tree) if 1 < cases(t, sparse) <= CASES]
    if not inner:
        return None
    best = max(inner, key=lambda t: cases(t, sparse))
    every = tuple(dict.fromkeys(v for k in operands(best) for v in statement.inputs[k]))
    own = part(best, Statement(statement.inputs, every, best))
    left = operands(_with(tree, best, Const(0)))
    put = _with(tree, best, Access(-1))
    whole = Statement(
        (*(statement.inputs[k] for k in left), own.statement.output),
        statement.output,
        renumber(put, {-1: len(left), **{k: n for n, k in enumerate(left)}}),
        statement.reduce,
    )
    return Split((own,), whole, (*left, -1))


def _chain(tree: Tree) -> list[Tree]:
    """The terms of a sum."""
    if isinstance(tree, Op) and tree.name in ("+", "-"):
        left, right = (_chain(arg) for arg in tree.args)
        return [*left, *(right if tree.name == "+" else [Op("neg", (t,)) for t in right])]
    return [tree]


def _sum(trees: Sequence[Tree]) -> Tree:
    out = trees[0]
    for tree in trees[1:]:
        out = Op("+", (out, tree))
    return out


def _inside(tree: Tree) -> list[Tree]:
    """The functions inside a tree."""
    args = [a for a in tree.args if isinstance(a, Op)] if isinstance(tree, Op) else []
    return [*args, *(t for a in args for t in _inside(a))]


def _with(tree: Tree, old: Tree, new: Tree) -> Tree:
    """The tree with one part replaced; each operand occurs once, so no two parts are equal."""
    if tree == old:
        return new
    return Op(tree.name, tuple(_with(a, old, new) for a in tree.args)) if isinstance(tree, Op) else tree
