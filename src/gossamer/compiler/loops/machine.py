"""Running a loop nest as it stands, in Python: slow, plain, and the oracle of what is emitted as C."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.language.functions import FUNCTIONS
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    Acc,
    Append,
    Blank,
    Call,
    Drain,
    Expr,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Nest,
    Num,
    Prefetch,
    Scatter,
    Set,
    Stmt,
    Stop,
    Store,
    Var,
    While,
)

_SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "%": lambda a, b: a % b,
    "<": lambda a, b: int(a < b), "<=": lambda a, b: int(a <= b), ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b), "==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b),
    "min": min, "max": max, ">>": lambda a, b: a >> b, "<<": lambda a, b: a << b,
    "&": lambda a, b: a & b, "^": lambda a, b: a ^ b, "|": lambda a, b: a | b,
    "/": lambda a, b: a // b if isinstance(a, int) else a / b,
}  # fmt: skip


class _StopLoopError(Exception):
    """A loop is left."""


class Machine:
    """Runs nests on lists. ``entries`` collects what is appended.

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import Bin, Nest
    >>> twice = Store("out", Var("i"), Bin("*", Num(2.0), Load("A", Var("i"))))
    >>> nest = Nest("twice", (), (), [For("i", Num(0), Var("i.size"), [twice])], "float")
    >>> Machine({"A": [1.0, 2.0], "out": [0.0, 0.0]}, {"i.size": 2}).run(nest)["out"]
    [2.0, 4.0]
    """

    def __init__(self, arrays: Mapping[str, Sequence[Any] | Tensor], sizes: Mapping[str, int]) -> None:
        self.arrays: dict[str, Any] = {n: a if isinstance(a, Tensor) else list(a) for n, a in arrays.items()}
        self.names: dict[str, Any] = dict(sizes)
        self.workspace: dict[int, float] = {}
        self.entries: list[tuple[int, float]] = []

    def run(self, nest: Nest) -> dict[str, Any]:
        """Run a nest; return the arrays afterwards."""
        self.names[names.COUNT] = 0
        self.block(nest.body)
        return self.arrays

    def value(self, e: Expr) -> Any:
        if isinstance(e, Num):
            return e.value
        if isinstance(e, Var):
            return self.names[e.name]
        if isinstance(e, Load):
            index = self.value(e.index)
            if index < 0:
                raise IndexError(f"{e.array}[{index}]")
            return self.arrays[e.array][index]
        if isinstance(e, Call):
            args = [torch.tensor(self.value(a), dtype=torch.float64) for a in e.args]
            return FUNCTIONS[e.name].torch(*args).item()
        if e.sign in ("&&", "||"):  # the right side may be out of range where the left decides
            left = self.value(e.left)
            return left if bool(left) == (e.sign == "||") else self.value(e.right)
        return _SIGNS[e.sign](self.value(e.left), self.value(e.right))

    def block(self, body: list[Stmt]) -> None:
        for s in body:
            self.statement(s)

    def loop(self, s: For | While) -> None:
        with suppress(_StopLoopError):
            if isinstance(s, For):
                for i in range(self.value(s.begin), self.value(s.end)):
                    self.names[s.var] = i
                    self.block(s.body)
            else:
                while self.value(s.condition):
                    self.block(s.body)

    def statement(self, s: Stmt) -> None:
        known = self.names
        if isinstance(s, (For, While)):
            self.loop(s)
        elif isinstance(s, If):
            self.block(s.body if self.value(s.condition) else s.other)
        elif isinstance(s, Let):
            known[s.name] = self.value(s.value)
        elif isinstance(s, Acc):
            known[s.name] = s.start
        elif isinstance(s, (Set, Into)):
            known[s.name] = self.combine(known.get(s.name), s.sign, self.value(s.value))
        elif isinstance(s, Store):
            index, array = self.value(s.index), self.arrays[s.array]
            if index < 0:
                raise IndexError(f"{s.array}[{index}]")
            array[index] = self.combine(array[index], s.sign, self.value(s.value))
        elif isinstance(s, Find):
            begin, end, coord = self.value(s.begin), self.value(s.end), self.value(s.coord)
            array = self.arrays[s.array]
            at = begin + bisect_left(range(begin, end), coord, key=array.__getitem__)  # a tensor is no sequence
            known[s.name] = at if at < end and array[at] == coord else end
        elif isinstance(s, Scatter):
            coord = self.value(s.coord)
            self.workspace[coord] = self.workspace.get(coord, 0) + self.value(s.value)
        elif isinstance(s, Drain):
            for known[s.var], known[s.value] in sorted(self.workspace.items()):
                self.block(s.body)
            self.workspace.clear()
        elif isinstance(s, Blank):
            index = self.value(s.index)
            known[s.name] = int(not any(self.arrays[s.array][index : index + s.count]))
        elif isinstance(s, Stop):
            raise _StopLoopError
        elif isinstance(s, Prefetch):
            self.value(s.index)  # what it reads must be there, the element itself need not
        else:
            assert isinstance(s, Append)
            self.entries.append((self.value(s.coord), self.value(s.value)))
            self.names[names.COUNT] += 1

    @staticmethod
    def combine(old: Any, sign: str, new: Any) -> Any:
        """Return what an assignment leaves."""
        if sign == "=":
            return new
        if sign == "+=":
            return old + new
        if sign == "^=":
            return old ^ new
        if math.isnan(new) or math.isnan(old):
            return math.nan
        return max(old, new) if sign == "max=" else min(old, new)
