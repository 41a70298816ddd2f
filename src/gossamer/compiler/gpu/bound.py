"""A design bound to its arrays: kernels to launch, with every argument that does not change from call to call."""

from __future__ import annotations

import math
from collections.abc import Mapping as Named
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gossamer.compiler.gpu.design import PIECE, SLOT, Design, NoKernelError, last, rest
from gossamer.compiler.gpu.kernel import Kernel, fits, kernel
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.pieces import Walked
from gossamer.compiler.language.program import Program
from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.loops import names
from gossamer.compiler.run.args import Arg, strides_in

_SHORT = 2**31 - 2**21  # numbers below need no 64 bits, not even after a step of a loop


class Step(NamedTuple):
    """A kernel to launch: its arguments, with 0 for what a call brings, and where those go."""

    kernel: Kernel
    grid: tuple[int, int, int]
    arguments: list[int]
    values: dict[int, int]  # of operands, by number
    out: int
    part: int | None
    slots: int  # sums that it leaves to the next step


class Place(NamedTuple):
    """A tensor that kernels write: its shape, and its dimensions in the order of memory."""

    shape: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def stored(self) -> tuple[int, ...]:
        """Its shape in the order of memory."""
        return tuple(self.shape[d] for d in self.order)

    @property
    def back(self) -> tuple[int, ...]:
        """The permutation that turns it from the order of memory into its own."""
        return tuple(self.order.index(d) for d in range(len(self.order)))

    @property
    def turned(self) -> bool:
        """Does memory have another order than its own?"""
        return self.order != tuple(range(len(self.order)))


class Bound:
    """The steps of a design, the arrays that they point to, and what they write."""

    def __init__(self, design: Design, args: Sequence[Arg], sizes: Named[str, int]) -> None:
        self.design, self.args, self.sizes = design, args, {**sizes, PIECE: design.cut.number}
        self.out = self._place(design.statement.output)
        self.part = self._place(design.program.free)
        self.copies: dict[int, tuple[int, ...]] = {}  # operands to copy: their dimensions, in the order of the copy
        self.keep: list[Tensor] = []
        self.steps: list[Step] = []
        self.long = self._long()
        self._first()
        groups = design.cut.rest if design.roles.outer else None
        while groups is not None:
            more = rest(design, groups)
            own = self._sizes(more.program) | self._lead_numbers(0, more.lead)
            strides = [math.prod(self.part.shape), *strides_in(*self.part)]
            own |= {names.stride("B", d): s for d, s in enumerate(strides)}
            self._step(more.program, more.mapping, self._arrays(0, more.lead), own, more.cut.number, more.cut.slots)
            groups = more.cut.rest

    def _place(self, indices: Sequence[str]) -> Place:
        strip = self.design.program.strip
        order = last(indices, strip) if strip is not None and strip in indices else tuple(range(len(indices)))
        return Place(tuple(self.sizes[v] for v in indices), order)

    def _first(self) -> None:
        """Bind the nest over entries."""
        design, lead = self.design, self.design.roles.lead
        arrays, numbers = self._arrays(lead, design.lead), self._lead_numbers(lead, design.lead)
        numbers |= self._sizes(design.program)
        for k, arg in enumerate(self.args):
            if k in design.views:
                view = design.views[k]
                for n, level in enumerate(view.levels):
                    found = [] if level.full else level.arrays
                    arrays |= {names.array(k, a, n): view.arrays[f"{a}{n}"] for a in found}
                    numbers |= {names.array(k, x, n): value for x, value in view.own_numbers(n).items()}
            elif k != lead:
                numbers |= {names.stride(operand_name(k), d): s for d, s in enumerate(self._strides(k, arg))}
        slots = design.cut.slots if design.roles.outer else design.cut.number
        self._step(design.program, design.mapping, arrays, numbers, design.cut.number, slots)

    def _strides(self, k: int, arg: Arg) -> tuple[int, ...]:
        unit = self.design.unit
        if not unit or not self.design.copied(arg, unit):
            return arg.strides
        self.copies[k] = last(arg.vars, unit)
        return self.design.strides(arg, unit)

    def _sizes(self, program: Program) -> dict[str, int]:
        """Sizes of loops, and strides of what is written."""
        numbers = {names.size(v): self.sizes[v] for v in program.order if v != SLOT} | {names.size(SLOT): 0}
        head = () if self.design.roles.outer else (0,)
        numbers |= {names.stride(names.OUT, d): s for d, s in enumerate((*head, *strides_in(*self.out)))}
        numbers |= {names.stride(names.PART, d): s for d, s in enumerate(strides_in(*self.part))}
        return numbers | {names.TOTAL: math.prod(self.part.shape)}

    @staticmethod
    def _arrays(k: int, lead: Walked) -> dict[str, Tensor]:
        return {names.array(k, n[:-1], int(n[-1])): array for n, array in lead.arrays.items()}

    @staticmethod
    def _lead_numbers(k: int, lead: Walked) -> dict[str, int]:
        return {names.array(k, n[:-1], int(n[-1])): number for n, number in lead.numbers.items()}

    def _step(
        self,
        program: Program,
        mapping: Mapping,
        arrays: dict[str, Tensor],
        numbers: dict[str, int],
        count: int,
        slots: int,
    ) -> None:
        made, batch = kernel(program, mapping, self.long), self.sizes[mapping.batch] if mapping.batch else 1
        grid = (-(-count // mapping.units), mapping.tiles(self.sizes.get(mapping.var, 1)), batch)
        if not fits(grid):
            raise NoKernelError(f"a grid of {grid} blocks is more than a GPU takes")
        nest = made.nest
        self.keep += arrays.values()
        arguments = [arrays[n].data_ptr() if n in arrays else 0 for n, _ in nest.arrays]
        arguments += [numbers[n] for n in nest.sizes]
        slot = {n: i for i, (n, _) in enumerate(nest.arrays)}
        values = {k: slot[names.values(k)] for k in range(len(program.operands))}
        part = slot.get(names.PART)
        self.steps.append(Step(made, grid, [*arguments, count], values, slot[names.OUT], part, slots))

    def _long(self) -> bool:
        """Does an index need 64 bits?"""
        pieces = self.design.cut.number + 1
        extents = [pieces, math.prod(self.out.shape), pieces * math.prod(self.part.shape)]
        for arg in self.args:
            if arg.structure is None or arg.structure.plain:
                extents.append(sum((size - 1) * s for size, s in zip(arg.shape, arg.strides, strict=True) if size))
                extents.append(math.prod(arg.shape))
            else:
                extents.append(math.prod(arg.structure.value_shape))
        return max(extents) > _SHORT

    def nbytes(self) -> int:
        """Bytes of its arrays besides those that are kept with the structures."""
        entries = self.design.sorted
        kept = (*entries.inner, entries.where, *entries.groups.coords)
        views = [a for view in self.design.views.values() for a in view.arrays.values()]
        shared = {id(a) for a in (*kept, *views)}
        return sum(a.nbytes for a in {id(a): a for a in self.keep if id(a) not in shared}.values())
