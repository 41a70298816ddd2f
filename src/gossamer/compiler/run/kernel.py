"""Kernel: a program that has been compiled. One for each program, made when it is first needed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch

from gossamer.compiler.emit import unit
from gossamer.compiler.language.program import Program
from gossamer.compiler.loops.lower import Lowering
from gossamer.compiler.loops.nest import Nest, names_in
from gossamer.compiler.run import runtime

_KERNELS: dict[Program, Kernel] = {}
_LOCK = threading.Lock()


class Kernel:
    """A compiled loop nest: ``loops`` and ``source`` print it, ``run`` calls it."""

    def __init__(self, program: Program) -> None:
        self.program = program
        lowering = Lowering(program)
        self.nest: Nest = lowering.nest()
        #: does it write every place of its output, so that this needs no zeros before?
        self.covers = lowering.covers and bool(self.nest.body)
        self.pointers = ctypes.c_void_p * len(self.nest.arrays)  # the type of its arguments, looked up once
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
        return unit.source(nests)

    @cached_property
    def functions(self) -> dict[str, Any]:
        """The functions of the built library."""
        with _LOCK:
            handle = runtime.library(self.source)
        names = ("fill", "count") if self.program.scatters else ("fill",)
        return {name: runtime.function(handle, name) for name in names}

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
