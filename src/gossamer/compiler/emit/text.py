"""What C and CUDA have in common: lines, blocks, numbers, operators, maxima."""

from __future__ import annotations

from gossamer.compiler.emit.names import Names
from gossamer.compiler.language.functions import FUNCTIONS
from gossamer.compiler.loops.nest import Bin, Call, Nest, Num, Stmt, Var


class Text:
    """The text of one nest. A language adds how it writes statements, variables and elements of arrays.

    Examples
    --------
    >>> text = Text(Nest("", (), (), [], "float"))
    >>> text.binary(Bin("max", Num(1), Num(2)), "a", "b"), text.number(Num(float("-inf")))
    ('(a > b ? a : b)', '(-__builtin_inf())')
    """

    INFINITY = "__builtin_inf()"

    def __init__(self, nest: Nest) -> None:
        self.nest = nest
        self.suffix = "f" if nest.value in ("half", "bfloat16", "float") else ""
        self.name = Names(nest.indices)
        self.lines: list[str] = []
        self.depth = 1

    def put(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def block(self, body: list[Stmt]) -> None:
        self.depth += 1
        for s in body:
            self.statement(s)
        self.depth -= 1

    def statement(self, s: Stmt) -> None:
        raise NotImplementedError

    def call(self, e: Call, args: list[str]) -> str:
        return FUNCTIONS[e.name].c.format(*(f"({a})" for a in args), f=self.suffix)

    def binary(self, e: Bin, left: str, right: str) -> str:
        if e.sign in ("min", "max"):
            return f"({left} {'<' if e.sign == 'min' else '>'} {right} ? {left} : {right})"
        if isinstance(e.right, Var) and e.sign == "/" and e.right.name.endswith(".size"):
            right = f"(real){right}"
        return f"({left} {e.sign} {right})"

    def number(self, e: Num) -> str:
        if isinstance(e.value, int):
            return str(e.value)
        if e.value in (float("inf"), float("-inf")):
            largest = {"int": "2147483647", "long": "9223372036854775807"}.get(self.nest.value, self.INFINITY)
            return f"({'-' if e.value < 0 else ''}{largest})"
        return f"((real){e.value!r})"

    def extreme(self, acc: str, sign: str, value: str) -> str:
        """Return the statement that takes a value into a maximum or a minimum; NaN wins."""
        better = ">" if sign == "max=" else "<"
        return f"{{ const real x_ = {value}; if (x_ {better} {acc} || x_ != x_) {acc} = x_; }}"
