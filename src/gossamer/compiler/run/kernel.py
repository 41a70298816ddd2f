"""Kernel: a program that has been compiled. One for each program, made when it is first needed."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from gossamer.compiler.emit import unit
from gossamer.compiler.language.algebra import needed, without
from gossamer.compiler.language.program import Program, Stack
from gossamer.compiler.language.tree import ZERO
from gossamer.compiler.loops import names
from gossamer.compiler.loops.lower import Lowering
from gossamer.compiler.loops.nest import Nest, Var, names_in
from gossamer.compiler.run import runtime

_KERNELS: dict[Program, Kernel] = {}
_LOCK = threading.Lock()
_MOST = 8  # operands whose sets are all looked at


class Kernel:
    """A compiled loop nest: ``loops`` and ``source`` print it, ``run`` calls it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        lowering = Lowering(program)
        self.nest: Nest = lowering.nest()
        #: does it write every place of its output, so that this needs no zeros before?
        self.covers = lowering.covers and bool(self.nest.body)
        self.pointers = struct.Struct(f"{len(self.nest.arrays)}N").pack  # faster than an array of ctypes
        self.packed = struct.Struct(f"{4 + len(self.nest.arrays)}N").pack
        self.pool = runtime.pool()

    @property
    def loops(self) -> str:
        """The loop nest as text."""
        return str(self.nest)

    @cached_property
    def source(self) -> str:
        """The C source."""
        nests = {"fill": self.nest}
        if self.program.scatters:
            nests["count"] = Lowering(self.program, count=True).nest()
        if self.repeats:
            nests["again"] = Lowering(self.program, known=True).nest()
        return unit.source(nests)

    @property
    def repeats(self) -> bool:
        """Has it a function for a result whose coordinates are known?"""
        return self.program.scatters and self.row_by_row and self.program.workspace in ("dense", "wide")

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The functions of the built library."""
        handle = self.library
        names = ["fill", *(["count"] if self.program.scatters else []), *(["again"] if self.repeats else [])]
        return {name: runtime.function(handle, name) for name in names}

    @cached_property
    def library(self) -> Any:
        """The built library."""
        with _LOCK:
            return runtime.library(self.source)

    @cached_property
    def fill(self) -> Any:
        """The function that computes, of ``packed`` arguments, for kernels without a workspace: they can't fail."""
        return runtime.call(self.library, "fill")

    @cached_property
    def points(self) -> tuple[frozenset[int], ...]:
        """The smallest sets of operands whose entries make one of a sparse result; none if it is not made so."""
        program, statement = self.program, self.program.statement
        walked = [k for k, o in enumerate(program.operands) if isinstance(o, Stack)]
        whole = all(sorted(statement.inputs[k]) == sorted(statement.output) for k in walked)
        points = needed(statement.tree, frozenset(walked))
        if statement.summed or program.scatters or not whole or frozenset() in points or len(walked) > _MOST:
            return ()
        least = tuple(p for p in points if not any(other < p for other in points))
        # what is zero without being written so, as where(0 > 1, 2, 3) is, is an entry of zero
        for here in (frozenset(c) for n in range(len(walked) + 1) for c in itertools.combinations(walked, n)):
            if not any(p <= here for p in least) and without(statement.tree, frozenset(walked) - here) != ZERO:
                return ()
        return least

    @cached_property
    def row_by_row(self) -> bool:
        """Is a row of a sparse result what threads share, so that one number counts both?"""
        output = self.program.output
        rows = output.kind == "rows" and len(output.vars) == 2
        return rows and self.nest.units == Var(names.size(output.vars[0]))

    def units(self, sizes: dict[str, int], arrays: dict[str, torch.Tensor]) -> int:
        """Return into how many parts threads may cut the outermost loop."""
        from gossamer.compiler.loops.machine import Machine

        if self.nest.units is None:
            return 1
        used = {name: array.view(-1) for name, array in arrays.items() if name in names_in(self.nest.units)}
        return int(Machine(used, sizes).value(self.nest.units))

    def run(
        self,
        name: str,
        pointers: Sequence[int],
        sizes: Any,
        chunks: int,
        start: int = 0,
        done: int = 0,
        threads: int = 1,
    ) -> int:
        """Call one of its functions on pointers to the arrays of its nest; return how many entries it appended."""
        entries: int = self.functions[name](self.pool, threads, chunks, self.pointers(*pointers), sizes, start, done)
        if entries < 0:
            raise MemoryError(f"no memory for a workspace over {self.program.output.vars[-1]!r} of {self.program}")
        return entries


def kernel(program: Program) -> Kernel:
    """Return the kernel of a program; equal programs have one."""
    found = _KERNELS.get(program)
    if found is None:
        found = _KERNELS.setdefault(program, Kernel(program))
    return found
