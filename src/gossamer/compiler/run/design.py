"""Design: how a statement on operands of known structure is computed. Views of them, loops, tiles, the program.

What is decided depends on statistics of the operands, not on their patterns: a design is found again for other patterns
that look alike, and then costs little more than a look at them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from gossamer.compiler import Choice, Derived, Given, Output, Program, Stack, Statement, Strided, nest_order
from gossamer.compiler.loops import by_hand
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.loops.schedule import TURN, Scheduler, schedule
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.cache import DESIGNS
from gossamer.compiler.run.lengths import Sums, uneven
from gossamer.compiler.run.operands import Operands
from gossamer.compiler.run.tiling import Tiling, tiling
from gossamer.compiler.run.views import C_TYPES
from gossamer.formats import Format
from gossamer.formats.base import check_size

_SMALL, _LARGE = 1 << 16, 1 << 22  # coordinates up to which a workspace is dense, with one or two levels of bits
_OFTEN = 1 << 16  # terms of a sum from which on it is not added to one place in memory
_CLEARED = 1 << 21  # bytes of a result that are set to 0 in less time than a loop over empty rows takes
_CACHE = 1 << 19  # bytes of an operand's strip that stay in the L2 cache


class _Known(NamedTuple):
    """What a design decided, for operands that look like those that it was made for."""

    choice: Choice
    program: Program
    orders: tuple[tuple[int, ...] | None, ...]  # of operands that are repacked
    filled: frozenset[int]  # operands whose empty rows are left out
    sizes: dict[str, int]


class Design(Operands):
    """The views, loops and program of a statement; ``out`` is "dense", the number of an operand, or a format."""

    def __init__(
        self,
        statement: Statement,
        args: Sequence[Arg],
        sizes: dict[str, int],
        dtype: torch.dtype,
        out: str | int | Format,
        loops: Loops | None = None,
    ) -> None:
        super().__init__(statement, args, sizes, out)
        self.dtype, self.loops = dtype, loops or Loops()
        key = self._key()
        known: _Known | None = DESIGNS.get(key)
        if known is not None and self._repeat(known):
            return
        self.keep_whole()
        if self.loops.order is not None and "." not in self.loops.order:
            self.uncut()
        self.choice = by_hand.applied(self.loops, self._choose())
        self.choice = self._in_parts() or self.choice
        self.tiling = self._tile()
        if self.loops.tile and (self.tiling is None or self.tiling.view is None):
            raise ValueError(
                f"{self.loops}: there is nothing to tile in {self.statement}. Tiles are for a result with the entries "
                f"of a CSR operand, summed along an index of dense operands whose size is a multiple of 64 bytes"
            )
        self.program = self._program()
        if self.tiling is None:
            DESIGNS.keep(key, _Known(self.choice, self.program, tuple(self.orders), frozenset(self.filled), self.sizes))

    # -- designs that are known

    def _key(self) -> Hashable:
        """All that a design depends on: entries below a position to two digits, and nothing else of a pattern."""
        looks: list[Hashable] = []
        for arg, view in zip(self.args, self.views, strict=True):
            if view is None or arg.structure is None:
                looks.append((arg.vars, arg.shape, arg.stride, arg.structure is None))
                continue
            kinds = tuple(array.dtype for array in view.arrays.values())
            fans = tuple(float(f"{fan:.1e}") for fan in view.fans)
            uneven_rows = uneven(arg.structure)
            looks.append((arg.vars, arg.shape, arg.structure.format, kinds, fans, view.index is None, uneven_rows))
        return "design", self.statement, tuple(looks), tuple(self.sizes.items()), self.dtype, self.out, self.loops

    def _repeat(self, known: _Known) -> bool:
        """Take a known design; False if a sum is long here and was not there."""
        views, sizes = self.views, self.sizes
        self.views = list(views)
        for k, order in enumerate(known.orders):
            if order is not None:
                self.repack(k, order)
            elif k in known.filled:
                self.views[k] = self.filled_view(k)
        if any(self.views[k] is None for k in known.filled):
            self.views = views
            return False
        self.choice, self.program, self.sizes = known.choice, known.program, dict(known.sizes)
        if self._long() == self.program.long:
            return True
        self.views, self.sizes, self.orders = views, sizes, [None] * len(views)
        return False

    # -- the schedule

    def _output(self, unit: str | None = None) -> Output:
        own = self.statement.output
        if self.out == "dense":
            return Output("dense", own, unit or (own[-1] if own else None))
        if isinstance(self.out, int):
            tile = (self.tiling.tile,) if self.tiling and self.tiling.view else ()
            return Output("pattern", (*tile, *self.args[self.out].vars), None, self.out)
        assert isinstance(self.out, Format)
        check_size(tuple(self.sizes[v] for v in own), f"the result of {self.statement}, of shape")
        stored = own if self.out.order is None else tuple(own[d] for d in self.out.order)
        levels = self.out.stack(len(own))
        rows = len(own) > 1 and all(level.full for level in levels[:-1]) and not levels[-1].full
        rows = rows and levels[-1].arrays == ("pos", "crd") and max(self.sizes[v] for v in own) < 2**31
        return Output("rows" if rows else "keys", stored)

    def _choose(self) -> Choice:
        derived = self.derived()
        given = [self.given(k, view) for k, view in enumerate(self.views)]
        best = self._scheduled(given, derived)
        if derived and best is None:
            for k, view in enumerate(self.views):
                if view is not None and view.cut:
                    self.repack(k)
            return self._choose()
        best, given = self._skipping(best, given, derived)
        for k, view in enumerate(self.views):  # would it pay to sort an operand in another order?
            if view is None or view.cut or len(self.args[k].shape) < 2:
                continue
            for order in self.other_orders(k, view):
                trial = [self.turned(k, order) if j == k else g for j, g in enumerate(given)]
                found = self._scheduled(trial, derived)
                if found is None:
                    continue
                found = replace(found, cost=found.cost + TURN * given[k].count)
                if best is None or found.cost < best.cost:
                    best, given = found, trial
                    self.repack(k, order)
                    given[k] = self.given(k, self.views[k])
        if best is None:
            return self._all_searchable()
        return best

    def _in_parts(self) -> Choice | None:
        """Return loops with a summed index outermost, if a place in memory would be added to very often: None if not.

        The sum is then made of partial results. In one place, 30 million ones would be 16,777,216.
        """
        choice, output = self.choice, set(self.statement.output)
        nest = nest_order(choice, frozenset(output), False)
        summed = next((d for d, v in enumerate(nest) if v not in output), len(nest))
        if self.out != "dense" or self.derived() or self.loops.order is not None:
            return None
        if not 0 < summed or output <= set(nest[:summed]) or self.sums.terms(self.views) <= _OFTEN:
            return None
        s, given = self.statement, tuple(self.given(k, v) for k, v in enumerate(self.views))
        first = nest[summed]
        order = (first, *(v for v in choice.order if v != first))
        return schedule(s.tree, given, tuple(self.sizes.items()), self._output(), (), s.reduce, order)

    def _skipping(
        self, best: Choice | None, given: list[Given], derived: tuple[Derived, ...]
    ) -> tuple[Choice | None, list[Given]]:
        """Leave out the empty rows of operands, where that makes a dense result cheaper."""
        places = math.prod(self.sizes[v] for v in self.statement.output)
        if self.out != "dense" or places * self.dtype.itemsize > _CLEARED:
            return best, given  # zeros in memory that no cache holds take as long as empty rows
        for k in range(len(self.views)):
            if best is None or (view := self.filled_view(k)) is None:
                continue
            trial = [self.given(k, view) if j == k else g for j, g in enumerate(given)]
            found = self._scheduled(trial, derived)
            if found is not None and found.cost < best.cost:
                best, given, self.views[k] = found, trial, view
                self.filled.add(k)
        return best, given

    def _all_searchable(self) -> Choice:
        """Repack everything: compressed levels can be walked and searched in any order of loops."""
        for k, view in enumerate(self.views):
            if view is not None:
                self.repack(k)
        found = self._scheduled([self.given(k, view) for k, view in enumerate(self.views)], ())
        if found is None:
            order = "no order of loops computes" if self.loops.order is None else f"{self.loops} can't compute"
            raise NotImplementedError(f"{order} {self.statement}{self._possible()}")
        return found

    def _order(self, given: list[Given], derived: tuple[Derived, ...]) -> tuple[str, ...] | None:
        """Return the order of loops that was given by hand."""
        s = self.statement
        every = Scheduler(s.tree, given, self.sizes, self._output(), derived, s.reduce).vars if self.loops.order else ()
        return self.loops.ordered(every)

    def _possible(self) -> str:
        """Orders of loops that could have been given."""
        if self.loops.order is None:
            return ""
        given, s, sizes = tuple(self.given(k, v) for k, v in enumerate(self.views)), self.statement, self.sizes
        every = self._order(list(given), ()) or ()
        orders = itertools.permutations(sorted(every)) if len(every) < 5 else ()
        settings = s.tree, given, tuple(sizes.items()), self._output(), (), s.reduce
        found = [by_hand.spelled(order) for order in orders if schedule(*settings, order) is not None]
        return f"; these orders can: {', '.join(found)}" if found else ""

    def _scheduled(self, given: list[Given], derived: tuple[Derived, ...]) -> Choice | None:
        s, output = self.statement, self._output()
        sizes, stacks = tuple(self.sizes.items()), tuple(given)
        order = self._order(given, derived)
        found = schedule(s.tree, stacks, sizes, output, derived, s.reduce, order)
        if output.kind != "rows":
            return found
        other = schedule(s.tree, stacks, sizes, Output("keys", output.vars), derived, s.reduce, order)
        return other if found is None or (other is not None and other.cost < found.cost) else found

    def _tile(self) -> Tiling | None:
        """Cut the loops of a result that has an operand's entries, where that pays."""
        if not isinstance(self.out, int) or self.statement.reduce != "sum" or self.derived():
            return None
        if (view := self.views[self.out]) is None or view.cut:
            return None
        found = tiling(self.choice, self.args, self.out, view, self.sizes, self.dtype, self.loops.tile)
        if found is None:
            return None
        self.args = [found.cut(arg) for arg in self.args]
        self.sizes |= {found.part: found.parts} if found.parts > 1 else {}
        self.sizes[found.var] = found.turns
        if found.view is not None:
            self.views[self.out] = found.view
            self.sizes[found.tile] = found.view.sizes[0]
        return found

    # -- the program

    def _program(self) -> Program:
        choice, s = self.choice, self.statement
        last = choice.order[-1] if choice.order else None
        operands: list[Stack | Strided] = []
        for k, view in enumerate(self.views):
            operand = self.given(k, view).operand
            if k in choice.copies and isinstance(operand, Strided):
                operand = Strided(operand.vars, last)
            operands.append(operand)
        unit = choice.strip if choice.strip in s.output else None
        output = self._output(unit)
        if output.kind == "rows" and choice.method == "sort":
            output = Output("keys", output.vars)
        if output.kind == "rows" and choice.order[: len(output.vars) - 1] != output.vars[:-1]:
            output = Output("keys", output.vars)
        derived = tuple(d for d in self.derived())
        program = Program(s, s.tree, tuple(operands), output, choice.order, C_TYPES[self.dtype], choice.strip, derived)
        order = nest_order(choice, program.out_vars, self._outside(choice))
        workspace = None
        if choice.method == "workspace":
            size = self.sizes[output.vars[-1]]
            workspace = self.loops.workspace or ("dense" if size <= _SMALL else "wide" if size <= _LARGE else "hash")
        program = replace(program, order=order, workspace=workspace, long=self._long(), ragged=self._ragged())
        if (t := self.tiling) is None:
            return program
        return replace(program, order=(*t.outside, *order), outside=t.outside, turns=((t.var, t.turns),))

    def _long(self) -> bool:
        """May a sum have so many terms that it must be made of blocks?"""
        return self.sums.long(self.views)

    def _ragged(self) -> bool:
        """Is a sum along the rows of an operand, which differ in length?"""
        last = self.choice.order[-1] if self.choice.order else None
        summed = self.statement.reduce in ("sum", "mean") and last not in self.statement.output
        rows = [a.structure for k, a in enumerate(self.args) if self.along(k, last)]
        return summed and any(uneven(s) for s in rows if s is not None)

    @property
    def sums(self) -> Sums:
        """What is summed, and by which loops the operands are walked."""
        loops = tuple(None if v is None else self.loop_vars(k, v) for k, v in enumerate(self.views))
        out = {
            *self.statement.output,
            *(v for d in self.derived() if d.var in self.statement.output for v, _ in d.parts),
        }
        return Sums(self.statement, loops, {v: self.sizes[v] for v in self.choice.order if v not in out})

    def _outside(self, choice: Choice) -> bool:
        """Is an ordinary operand too large for the cache, so that a strip of it should serve all rows?"""
        if choice.strip is None or self.sizes[choice.strip] < 128:
            return False
        bytes_each = torch.empty((), dtype=self.dtype).element_size()
        wide = [a for k, a in enumerate(self.args) if self.views[k] is None and choice.strip in a.vars]
        return any(bytes_each * torch.Size(a.shape).numel() > _CACHE for a in wide)
