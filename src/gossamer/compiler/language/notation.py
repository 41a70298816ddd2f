"""Index notation: what a person writes.

The notation of ``torch.einsum``, with additions::

    ik,kj->ij                 a comma multiplies (so does *); indices that are not in the output are summed
    ij + ij -> ij             union: sums, differences, max(ij, ij), min(ij, ij)
    ij,j + i -> i             each term sums its own indices, as if all were multiplied out: A b + c
    relu(ij) * j -> ij        functions, and numbers as factors
    relu(ik,kj + j) -> ij     a comma inside a function contracts: k is summed before the function
    exp(sum(ij) + i) -> i     the same, written out: sum() sums the indices that appear only inside it
    where(ij > 1, ij / i, 0)  conditions, comparisons (1 or 0) and quotients (0 / 0 is 0)
    max: ij -> i              another reduction: max, min or mean instead of sum; positions that are not stored are 0

    o k, i+k -> o i           affine access, in words: a dense operand is read at i + k (2*i+k, i+2*k)

Each group of indices stands for the next operand. An index is a letter or a word: "row col, col -> row" is the same as
"ij,j->i". A group with spaces is read as words if it has one word for each dimension of the operand. "..." stands for
dimensions that broadcast. Beside it, a group with no more letters than the operand has dimensions is read as letters,
as in torch. Without "->" the output has every index that appears once, in alphabetical order.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from functools import lru_cache

from gossamer.compiler.language.functions import FUNCTIONS
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.sums import simplified
from gossamer.compiler.language.tree import Access, Const, Op, Tree

REDUCTIONS = ("sum", "max", "min", "mean")
_LETTERS = string.ascii_letters
_WORD = r"[A-Za-z][A-Za-z0-9_]*"
_PART = rf"(?:{_WORD}(?![A-Za-z0-9_]|\s*\()|\.\.\.)"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)"
    rf"|(?P<call>{_WORD})\s*\(|(?P<group>{_PART}(?:\s*{_PART})*)|(?P<sign>[<>=!]=|[-+*/,()<>]))"
)


class NotationError(ValueError):
    """The expression can't be read; the message repeats it and says why."""


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
    return _parsed(text, tuple(dims))


@lru_cache(maxsize=1024)
def _parsed(text: str, dims: tuple[int, ...]) -> Statement:
    return _Reader(text, dims).statement()


def read(text: str) -> tuple[Tree, list[str]]:
    """Return the tree of an expression without output, and the text of its groups.

    Examples
    --------
    >>> tree, groups = read("30 * tanh(x / 30)")
    >>> print(tree, groups)
    30 * tanh(A / 30) ['x']
    """
    reader = _Reader(text, ())
    return reader.tree(text), reader.groups


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
        self.commas = 0  # that multiply, so far

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
        return simplified(Statement(inputs, output, tree, reduce))

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
        tree = self.compared(commas=True)
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

    def compared(self, commas: bool) -> Tree:
        tree = self.sum(commas)
        if sign := self.take("<", ">", "<=", ">=", "==", "!="):
            tree = Op(sign, (tree, self.sum(commas)))
        return tree

    def sum(self, commas: bool) -> Tree:
        tree = self.term(commas)
        while sign := self.take("+", "-"):
            tree = Op(sign, (tree, self.term(commas)))
        return tree

    def term(self, commas: bool) -> Tree:
        tree = self.factor()
        while sign := self.take("*", "/", ",") if commas else self.take("*", "/"):
            self.commas += sign == ","
            tree = Op("/" if sign == "/" else "*", (tree, self.factor()))
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
            tree = self.compared(commas=False)
            if not self.take(")"):
                raise self.fail("a '(' is not closed")
            return tree
        raise self.fail(f"{word!r} stands where an operand should be")

    def call(self, name: str) -> Tree:
        public = [n for n, f in FUNCTIONS.items() if f.public]
        if name not in public:
            raise self.fail(f"unknown function {name!r}; known are {', '.join(public)}")
        before, single = self.commas, FUNCTIONS[name].arity == 1
        args = [self.compared(commas=single)]
        while self.take(","):
            args.append(self.compared(commas=False))
        if self.commas > before and name != "sum":
            args = [Op("sum", (args[0],))]  # a comma contracts: what is inside is summed before the function
        self.commas = before
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
