"""Index notation: what a person writes.

It is that of ``torch.einsum``, and a little more::

    ik,kj->ij                 a comma multiplies (so does *), what is not in the output is summed
    ij + ij -> ij             union: sums, differences, max(ij, ij), min(ij, ij)
    relu(ij) * j -> ij        functions that are 0 at 0, and numbers as factors
    max: ij -> i              another reduction: max, min or mean instead of sum; what is not stored is 0

Each group of indices stands for the next operand. Spaces don't matter, "..." stands for dimensions that broadcast, and
without "->" the output has every index that appears once, in alphabetical order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.compiler.language.algebra import FUNCTIONS, Access, Const, Op, Tree, evaluate

REDUCTIONS = ("sum", "max", "min", "mean")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)"
    r"|(?P<call>[a-z_0-9]+)\s*\(|(?P<group>(?:[A-Za-z]|\.\.\.)+)|(?P<sign>[-+*,()]))"
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

    def __str__(self) -> str:
        text = _with_indices(self.tree, self.inputs)
        over = f"{self.reduce} over {', '.join(self.summed)} of " if self.summed else ""
        name = chr(65 + len(self.inputs))
        return f"{name}[{', '.join(self.output)}] = {over}{text}"


def _with_indices(tree: Tree, inputs: tuple[tuple[str, ...], ...]) -> str:
    text = str(tree)
    for k, group in enumerate(inputs):
        text = re.sub(rf"\b{chr(65 + k)}\b(?!\[)", f"{chr(65 + k)}[{', '.join(group)}]", text)
    return text


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


def parse_groups(text: str) -> list[str]:
    """Return the groups of indices of an expression, one an operand.

    Examples
    --------
    >>> parse_groups("ik,kj->ij")
    ['ik', 'kj']
    """
    reader = _Reader(text, ())
    reader.tree(text.partition(":")[2 * (":" in text)].partition("->")[0])
    return reader.groups


class _Reader:
    def __init__(self, text: str, dims: Sequence[int]) -> None:
        self.text, self.dims = text, dims
        self.groups: list[str] = []

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
        wide = self.ellipsis_width()
        inputs = tuple(
            self.indices(group, n, k) for k, (group, n) in enumerate(zip(self.groups, self.dims, strict=True))
        )
        output = self.output(right.replace(" ", ""), wide, inputs) if arrow else self.implied(inputs, wide)
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
            return Const(float(word))
        if kind == "group":
            self.groups.append(word)
            return Access(len(self.groups) - 1)
        if kind == "call":
            return self.call(word)
        if word == "-":
            return Op("neg", (self.factor(),))
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

    def ellipsis_width(self) -> int:
        wide = 0
        for k, (group, n) in enumerate(zip(self.groups, self.dims, strict=True)):
            letters = group.replace("...", "")
            if group.count("...") > 1 or "." in letters:
                raise self.fail(f"operand {k} has more than one '...'")
            if "..." in group:
                if n < len(letters):
                    raise self.fail(f"operand {k} has {n} dimensions, fewer than the indices of {group!r}")
                wide = max(wide, n - len(letters))
            elif n != len(letters):
                raise self.fail(f"operand {k} has {n} dimensions, but {group!r} names {len(letters)}")
        return wide

    def indices(self, group: str, n: int, k: int) -> tuple[str, ...]:
        before, dots, after = group.partition("...")
        if not dots:
            return tuple(group)
        hidden = n - len(before) - len(after)
        wide = self.ellipsis_width()
        return (*before, *(f"_{d}" for d in range(wide - hidden, wide)), *after)

    def output(self, text: str, wide: int, inputs: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
        before, dots, after = text.partition("...")
        if not re.fullmatch(r"[A-Za-z]*", before + after):
            raise self.fail(f"the output {text!r} must be letters, and '...' at most once")
        out = (*before, *((f"_{d}" for d in range(wide)) if dots else ()), *after)
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


def interpret(statement: Statement, tensors: Sequence[Tensor]) -> Tensor:
    """Compute a statement on dense tensors by broadcasting over all indices: the oracle of the compiler.

    Examples
    --------
    >>> import torch
    >>> interpret(parse("ij->ji", (2,)), [torch.arange(6.0).view(2, 3)]).shape
    torch.Size([3, 2])
    """
    every = [*statement.output, *statement.summed]
    views = []
    for group, tensor in zip(statement.inputs, tensors, strict=True):
        names = list(group)
        for v in [v for v in names if names.count(v) > 1]:
            while names.count(v) > 1:
                first, second = [d for d, name in enumerate(names) if name == v][:2]
                tensor = tensor.diagonal(dim1=first, dim2=second)
                names = [name for d, name in enumerate(names) if d not in (first, second)] + [v]
        order = [names.index(v) for v in every if v in names]
        tensor = tensor.permute(order)
        views.append(tensor[tuple(slice(None) if v in names else None for v in every)])
    sizes = torch.broadcast_shapes(*(v.shape for v in views)) if views else ()
    value = evaluate(statement.tree, views).expand(sizes)
    over = tuple(range(len(statement.output), len(every)))
    if not over:
        return value.clone()
    if statement.reduce in ("sum", "mean"):
        return getattr(value, statement.reduce)(over)
    return getattr(value, f"a{statement.reduce}")(over)
