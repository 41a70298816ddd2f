"""Programs: a statement with everything decided. Operands as stacks of levels, loop order, output, workspace.

A program is all that a kernel depends on, and nothing else: two calls with equal programs share one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Tree, operand_name


@dataclass(frozen=True)
class Walk:
    """How a level kind is walked, in the words of :class:`gossamer.formats.levels.Walk`."""

    begin: str
    end: str
    coord: str
    at: str = "q"
    real: str = ""
    locate: str = ""
    ordered: bool = True
    kept: str = ""

    @property
    def counted(self) -> bool:
        """Does its array ``pos`` count the entries before each parent (of all tiles, if it is cut into tiles)?"""
        return (self.begin, self.end) in (("pos[p]", "pos[p + 1]"), ("tile[p]", "tile[p + rows]"))

    @property
    def searchable(self) -> bool:
        """Can a coordinate be found by halving the range?"""
        return self.ordered and not self.real and self.at == "q" and self.coord == "crd[at]"


@dataclass(frozen=True)
class LevelUse:
    """A level of an operand: its walk, the loop variable of its coordinates, its number, its integers."""

    walk: Walk
    var: str
    number: int
    arrays: tuple[tuple[str, str], ...] = ()  # name and C type
    numbers: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Has it a position for every coordinate?"""
        return bool(self.walk.locate)


@dataclass(frozen=True)
class Stack:
    """An operand stored as a stack of levels."""

    levels: tuple[LevelUse, ...]

    @property
    def vars(self) -> tuple[str, ...]:
        """Its loop variables, outermost first."""
        return tuple(level.var for level in self.levels)


@dataclass(frozen=True)
class Strided:
    """An operand that is an ordinary tensor; ``unit`` is the index whose neighbours are neighbours in memory."""

    vars: tuple[str, ...]
    unit: str | None = None


Operand = Stack | Strided


@dataclass(frozen=True)
class Derived:
    """An index that is a sum of loop variables with weights: how blocked formats cut a dimension."""

    var: str
    parts: tuple[tuple[str, int], ...]
    guard: bool  # may it be outside the tensor (padding)?


@dataclass(frozen=True)
class Output:
    """Where results go.

    ``kind`` is "dense" (an ordinary tensor), "pattern" (the entries of operand ``like``), "rows" (a compressed level
    below dense ones) or "keys" (entries by their number, for any other format). ``vars`` are its indices as stored.
    """

    kind: str
    vars: tuple[str, ...]
    unit: str | None = None
    like: int = -1


@dataclass(frozen=True)
class Program:
    """A statement with everything decided."""

    statement: Statement
    tree: Tree
    operands: tuple[Operand, ...]
    output: Output
    order: tuple[str, ...]
    value: str = "float"
    strip: str | None = None
    derived: tuple[Derived, ...] = ()
    workspace: str | None = None
    outside: tuple[str, ...] = ()  # loops that each thread runs around its own part of the shared one: tiles
    long: bool = False  # may a sum have very many terms?
    ragged: bool = False  # do the lengths of rows change from one to the next?
    turns: tuple[tuple[str, int], ...] = ()  # loops whose number of turns is known when the kernel is built
    lead: int = -1  # the operand that is walked wherever it can be, while others are searched; -1: all are walked
    pieces: bool = False  # are the rows of the lead cut into pieces, whose sums must be added up?
    sums: tuple[int, ...] = ()  # operands whose values are sums of pieces, in the type of sums

    @property
    def free(self) -> tuple[str, ...]:
        """Indices of the output that the lead does not have: what the sum of a piece is an array over."""
        return tuple(v for v in self.output.vars if v not in self.operands[self.lead].vars)

    @property
    def root(self) -> int:
        """The loop that threads may share: the first, or the one inside strips and tiles."""
        strip = (self.strip,) if len(self.order) > 1 else ()
        return next((d for d, v in enumerate(self.order) if v not in (*strip, *self.outside)), 0)

    @property
    def out_vars(self) -> frozenset[str]:
        """Loop variables that the output depends on."""
        parts = {d.var: [v for v, _ in d.parts] for d in self.derived}
        return frozenset(p for v in self.output.vars for p in parts.get(v, [v]))

    @property
    def settled(self) -> int:
        """How many loops it takes until the place in the output is known."""
        return max((d + 1 for d, v in enumerate(self.order) if v in self.out_vars), default=0)

    @property
    def reduces_before(self) -> bool:
        """Is there a summed loop outside a loop of the output, so that a place is reached more than once?"""
        return any(v not in self.out_vars for v in self.order[: self.settled])

    @property
    def scatters(self) -> bool:
        """Does a sparse output need a workspace: are there sums outside its last index?"""
        return self.output.kind in ("rows", "keys") and self.workspace is not None

    def title(self) -> str:
        """Return what the nest computes, for a reader."""
        operands = ", ".join(
            f"{operand_name(k)} {'dense' if isinstance(o, Strided) else 'sparse'}({', '.join(o.vars)})"
            for k, o in enumerate(self.operands)
        )
        return f"{self.statement}\n{operands}; output {self.output.kind}({', '.join(self.output.vars)})"
