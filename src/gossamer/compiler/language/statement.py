"""Statements: expressions that have been read, and written again."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.compiler.language.algebra import factors, operands, outside
from gossamer.compiler.language.tree import Access, Const, Tree, operand_name, show, spelled

_LETTERS = string.ascii_letters


@dataclass(frozen=True)
class Statement:
    """An expression that has been read: indices of each operand and of the output, the tree, the reduction.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> s = parse("ik,kj->ij", (2, 2))
    >>> s.inputs, s.output, str(s.tree)
    ((('i', 'k'), ('k', 'j')), ('i', 'j'), 'A * B')
    >>> print(s)
    C[i, j] = sum over k of A[i, k] * B[k, j]
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    tree: Tree
    reduce: str = "sum"  # or "top", "bottom": extremes of the stored entries alone

    def __hash__(self) -> int:
        """Computed once: statements are parts of keys, and their trees may be large."""
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.inputs, self.output, self.tree, self.reduce))
            object.__setattr__(self, "_hash", found)
        return found

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_hash"}  # it differs in each process

    @property
    def summed(self) -> tuple[str, ...]:
        """Indices that are not in the output, in the order in which they appear."""
        return tuple(dict.fromkeys(v for group in self.inputs for v in group if v not in self.output))

    @property
    def multiplies(self) -> bool:
        """Is it a product of operands and nothing else, as those of ``torch.einsum``?"""
        return self.reduce == "sum" and all(isinstance(f, Access) and not f.stored for f in factors(self.tree))

    def __str__(self) -> str:
        text = show(self.tree, self.inputs)
        here = {v for k in operands(outside(self.tree)) for v in self.inputs[k]}
        summed = [v for v in self.summed if v in here]
        over = f"{self.reduce} over {', '.join(summed)} of " if summed else ""
        name = operand_name(len(self.inputs))
        return f"{name}[{', '.join(self.output)}] = {over}{text}"


def write(statement: Statement) -> str:
    """Return a statement as an expression, with letters for its indices: what :func:`parse` would read.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> write(parse("row col, col + row -> row", (2, 1, 1)))
    'ab * b + a -> a'
    """
    groups, output = _lettered(statement)
    head = "" if statement.reduce == "sum" else f"{statement.reduce}: "
    return f"{head}{_written(statement.tree, groups)} -> {output}"


def equation(statement: Statement) -> str:
    """Return a product of operands as ``torch.einsum`` takes it.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> equation(parse("row col, col -> row", (2, 1)))
    'ab,b->a'
    """
    groups, output = _lettered(statement)
    return f"{','.join(groups)}->{output}"


def canonical(statement: Statement) -> Statement:
    """Return the statement with its indices numbered in the order in which they appear: equal for equal computations.

    Examples
    --------
    >>> from gossamer.compiler.language.notation import parse
    >>> canonical(parse("ik,kj->ij", (2, 2))) == canonical(parse("jl,lm->jm", (2, 2)))
    True
    """
    every = dict.fromkeys(v for group in statement.inputs for v in group)
    number = {v: f"i{n}" for n, v in enumerate(every)}
    inputs = tuple(tuple(number[v] for v in group) for group in statement.inputs)
    return Statement(inputs, tuple(number[v] for v in statement.output), statement.tree, statement.reduce)


def _lettered(statement: Statement) -> tuple[list[str], str]:
    """The groups and the output, with a letter for each index."""
    every = dict.fromkeys(v for group in statement.inputs for v in group)
    if len(every) > len(_LETTERS):
        raise ValueError(f"{statement} has {len(every)} indices, more than there are letters")
    letters = dict(zip(every, _LETTERS, strict=False))
    groups = ["".join(letters[v] for v in group) for group in statement.inputs]
    return groups, "".join(letters[v] for v in statement.output)


def _written(tree: Tree, groups: Sequence[str]) -> str:
    if isinstance(tree, Const):
        return repr(tree.value)
    if isinstance(tree, Access):
        return groups[tree.operand] or "()"
    return spelled(tree, [_written(a, groups) for a in tree.args], exactly=True)
