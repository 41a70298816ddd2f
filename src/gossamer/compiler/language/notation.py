"""Index notation: what a person writes.

It is that of ``torch.einsum``, and a little more::

    ik,kj->ij                 a comma multiplies (so does *), what is not in the output is summed
    ij + ij -> ij             union: sums, differences, max(ij, ij), min(ij, ij)
    ij,j + i -> i             each term sums its own indices, as if all were multiplied out: A b + c
    relu(ij) * j -> ij        functions that are 0 at 0, and numbers as factors
    max: ij -> i              another reduction: max, min or mean instead of sum; what is not stored is 0

Each group of indices stands for the next operand. An index is a letter, or a word: "row col, col -> row" is "ij,j->i",
since a group with spaces is read as words if there are as many as the operand has dimensions. "..." stands for
dimensions that broadcast, and without "->" the output has every index that appears once, in alphabetical order.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from gossamer.compiler.language.algebra import FUNCTIONS, Access, Const, Op, Tree, factors, operand_name, show

REDUCTIONS = ("sum", "max", "min", "mean")
_LETTERS = string.ascii_letters
_WORD = r"[A-Za-z][A-Za-z0-9_]*"
_PART = rf"(?:{_WORD}(?![A-Za-z0-9_]|\s*\()|\.\.\.)"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
    rf"|(?P<call>{_WORD})\s*\(|(?P<group>{_PART}(?:\s*{_PART})*)|(?P<sign>[-+*,()]))"
)


class NotationError(ValueError):
    """The expression can't be read; the message repeats it and says why."""


@dataclass(frozen=True)
class Statement:
    """An expression that has been read: indices of each operand and of the output, the tree, the reduction.

    Examples
    --------
    >>> s = parse("ik,kj->ij", (2, 2))
    >>> s.inputs, s.output, str(s.tree)
    ((('i', 'k'), ('k', 'j')), ('i', 'j'), 'A * B')
    >>> print(s)
    C[i, j] = sum over k of A[i, k] * B[k, j]
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    tree: Tree
    reduce: str = "sum"  # or "top": the largest of the stored entries, which softmax needs and nobody can write

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
        over = f"{self.reduce} over {', '.join(self.summed)} of " if self.summed else ""
        name = operand_name(len(self.inputs))
        return f"{name}[{', '.join(self.output)}] = {over}{text}"


def write(statement: Statement) -> str:
    """Return a statement as an expression, with letters for its indices: what :func:`parse` would read.

    Examples
    --------
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
    >>> equation(parse("row col, col -> row", (2, 1)))
    'ab,b->a'
    """
    groups, output = _lettered(statement)
    return f"{','.join(groups)}->{output}"


def canonical(statement: Statement) -> Statement:
    """Return the statement with its indices numbered in the order in which they appear: equal for equal computations.

    Examples
    --------
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
    args = [_written(a, groups) for a in tree.args]
    if tree.name == "*":
        return " * ".join(
            f"({a})" if isinstance(x, Op) and x.name in "+-" else a for a, x in zip(args, tree.args, strict=True)
        )
    if tree.name in "+-":
        return f"{args[0]} {tree.name} ({args[1]})" if isinstance(tree.args[1], Op) else f" {tree.name} ".join(args)
    return f"{tree.name}({', '.join(args)})"


def parse(text: str, dims: Sequence[int]) -> Statement:
    """Read an expression for operands with these numbers of dimensions.

    Examples
    --------
    >>> parse("...j, j", (3, 1)).output
    ('_0', '_1')
    >>> parse("ij,jk->il", (2, 2))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
        ...
    NotationError: 'ij,jk->il': the output has 'l', which no operand has
    """
    if not isinstance(text, str):
        raise TypeError(f"an expression such as 'ik,kj->ij' is needed, not {text!r}")
    return _Reader(text, dims).statement()


def parse_groups(text: str) -> list[tuple[str, ...]]:
    """Return the groups of indices of an expression, one an operand: what can be read without the operands.

    Examples
    --------
    >>> parse_groups("ik,kj->ij")
    [('i', 'k'), ('k', 'j')]
    >>> parse_groups("row col, col -> row")
    [('row', 'col'), ('col',)]
    """
    reader = _Reader(text, ())
    reader.tree(text.partition(":")[2 * (":" in text)].partition("->")[0])
    words = [re.findall(r"\w+", group) for group in reader.groups if _spelled(group)]
    reader.words = any(len(word) > 1 for group in words for word in group)
    return [tuple(reader.split(group)) for group in reader.groups]


class _Reader:
    def __init__(self, text: str, dims: Sequence[int]) -> None:
        self.text, self.dims = text, dims
        self.groups: list[str] = []
        self.words = False

    def fail(self, why: str) -> NotationError:
        return NotationError(f"{self.text!r}: {why}")

    def statement(self) -> Statement:
        head, colon, body = self.text.partition(":")
        reduce, body = (head.strip(), body) if colon else ("sum", self.text)
        if reduce not in REDUCTIONS:
            raise self.fail(f"the reduction {reduce!r} is not one of {', '.join(REDUCTIONS)}")
        left, arrow, right = body.partition("->")
        if "->" in right:
            raise self.fail("more than one '->'")
        tree = self.tree(left)
        if len(self.groups) != len(self.dims):
            raise self.fail(f"it has {len(self.groups)} groups of indices for {len(self.dims)} operands")
        groups = self.read_groups()
        hidden = [n - len(g) + 1 if "..." in g else 0 for g, n in zip(groups, self.dims, strict=True)]
        wide = max(hidden, default=0)
        inputs = tuple(
            _spread(g, [f"_{d}" for d in range(wide - own, wide)]) for g, own in zip(groups, hidden, strict=True)
        )
        output = self.output(right, wide, inputs) if arrow else self.implied(inputs, wide)
        return Statement(inputs, output, tree, reduce)

    # -- the tree: sums of products of functions

    def tree(self, text: str) -> Tree:
        self.tokens: list[tuple[str, str]] = []
        place, text = 0, text.rstrip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if not found or not found.lastgroup:
                raise self.fail(f"can't read it from {text[place:].strip()!r} on")
            self.tokens.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()
        if any(kind == "sign" and sign == "," for kind, sign in self.tokens) or not self.tokens:
            self.empty_groups()
        tree = self.sum(commas=True)
        if self.tokens:
            raise self.fail(f"can't read it from {self.tokens[0][1]!r} on")
        return tree

    def empty_groups(self) -> None:
        """Two commas in a row have an operand without dimensions between them."""
        out: list[tuple[str, str]] = []
        depth = 0
        for token in [*self.tokens, ("sign", "end")]:
            before = out[-1] if out else ("sign", "start")
            depth += (token[0] == "call" or token[1] == "(") - (token[1] == ")")
            if token[1] in (",", "end") and before[0] == "sign" and before[1] in (",", "start") and depth <= 0:
                out.append(("group", ""))
            out.append(token)
        self.tokens = out[:-1]

    def take(self, *signs: str) -> str | None:
        if self.tokens and self.tokens[0][0] == "sign" and self.tokens[0][1] in signs:
            return self.tokens.pop(0)[1]
        return None

    def sum(self, commas: bool) -> Tree:
        tree = self.term(commas)
        while sign := self.take("+", "-"):
            tree = Op(sign, (tree, self.term(commas)))
        return tree

    def term(self, commas: bool) -> Tree:
        tree = self.factor()
        while self.take("*", ",") if commas else self.take("*"):
            tree = Op("*", (tree, self.factor()))
        return tree

    def factor(self) -> Tree:
        if not self.tokens:
            raise self.fail("it ends where an operand should be")
        kind, word = self.tokens.pop(0)
        if kind == "number":
            return Const(int(word) if word.isdigit() else float(word))
        if kind == "group":
            self.groups.append(word)
            return Access(len(self.groups) - 1)
        if kind == "call":
            return self.call(word)
        if word == "-":
            return Op("neg", (self.factor(),))
        if word == "(" and self.take(")"):  # an operand without dimensions, where commas don't show it
            self.groups.append("")
            return Access(len(self.groups) - 1)
        if word == "(":
            tree = self.sum(commas=False)
            if not self.take(")"):
                raise self.fail("a '(' is not closed")
            return tree
        raise self.fail(f"{word!r} stands where an operand should be")

    def call(self, name: str) -> Tree:
        public = [n for n, f in FUNCTIONS.items() if f.public]
        if name not in public:
            raise self.fail(f"unknown function {name!r}; known are {', '.join(public)}")
        args = [self.sum(commas=False)]
        while self.take(","):
            args.append(self.sum(commas=False))
        if not self.take(")"):
            raise self.fail(f"the '(' of {name} is not closed")
        if len(args) != FUNCTIONS[name].arity:
            raise self.fail(f"{name} takes {FUNCTIONS[name].arity} argument(s), not {len(args)}")
        return Op(name, tuple(args))

    # -- indices

    def read_groups(self) -> list[list[str]]:
        """Return the names of each group, "..." among them: as letters if their number fits, else as words."""
        self.words = False
        pairs = list(zip(self.groups, self.dims, strict=True))
        wrong = [k for k, (group, n) in enumerate(pairs) if not self.fits(group, n)]
        if wrong and any(_spelled(group) for group in self.groups):
            self.words = True
            if all(self.fits(group, n) for group, n in pairs):
                return [self.split(group) for group in self.groups]
            self.words = False
        for k in wrong:
            group, n = pairs[k]
            letters = [v for v in self.split(group) if v != "..."]
            if "..." in group:
                raise self.fail(f"operand {k} has {n} dimensions, fewer than the indices of {group!r}")
            raise self.fail(f"operand {k} has {n} dimensions, but {group!r} names {len(letters)}")
        return [self.split(group) for group in self.groups]

    def split(self, group: str) -> list[str]:
        return re.findall(r"\.\.\.|\w+" if self.words else r"\.\.\.|\w", group)

    def fits(self, group: str, n: int) -> bool:
        """Has a group as many names as its operand has dimensions?"""
        names = self.split(group)
        if names.count("...") > 1:
            raise self.fail(f"{group!r} has more than one '...'")
        named = [v for v in names if v != "..."]
        if not self.words and not all(v.isalpha() for v in named):
            return False
        return len(named) <= n if "..." in names else len(named) == n

    def output(self, text: str, wide: int, inputs: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
        names = self.split(text)
        if "".join(names) != text.replace(" ", "") or names.count("...") > 1:
            raise self.fail(f"the output {text.strip()!r} must be indices, and '...' at most once")
        out = _spread(names, [f"_{d}" for d in range(wide)])
        for v in out:
            if not any(v in group for group in inputs):
                raise self.fail(f"the output has {v!r}, which no operand has")
            if out.count(v) > 1:
                raise self.fail(f"the output has {v!r} twice")
        return out

    def implied(self, inputs: tuple[tuple[str, ...], ...], wide: int) -> tuple[str, ...]:
        every = [v for group in inputs for v in group]
        once = sorted(v for v in every if every.count(v) == 1 and not v.startswith("_"))
        return (*(f"_{d}" for d in range(wide)), *once)


def _spelled(group: str) -> bool:
    """Does a group show that it is of words: by a space between them, a digit or an underscore?"""
    return " " in group or not group.replace("...", "").isalpha()


def _spread(names: Sequence[str], dots: Sequence[str]) -> tuple[str, ...]:
    """Put the dimensions that '...' stands for in its place."""
    return tuple(v for name in names for v in (dots if name == "..." else [name]))
