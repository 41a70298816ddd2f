"""Plans: a statement on operands of known structure, scheduled and compiled, ready to run on any values.

A plan holds all that does not change from call to call: the kernel, pointers to index arrays, sizes, how to
allocate the output. What a call costs beyond its kernel is a few pointers and one allocation.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler import Choice, Derived, Given, Kernel, Output, Program, Stack, Statement, Strided, nest_order
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.restack import enough
from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.loops import names
from gossamer.compiler.loops.schedule import TURN, schedule
from gossamer.compiler.run.assemble import Places, assemble
from gossamer.compiler.run.explained import described, explained
from gossamer.compiler.run.flat import flattened
from gossamer.compiler.run.kernel import kernel
from gossamer.compiler.run.lengths import LONG, longest
from gossamer.compiler.run.tiling import Tiling, chunks, tiling
from gossamer.compiler.run.views import C_TYPES, View, fans_for, native, repacked, stack_for
from gossamer.formats import Format, Structure
from gossamer.formats.base import check_size

_ALONE = 30_000  # turns below which a second thread costs more than it saves
_SMALL, _LARGE = (
    1 << 16,
    1 << 22,
)  # coordinates of a row up to which a workspace is dense, with one or two levels of bits
_SCATTER = 6  # such turns that one takes which adds to a workspace
_EACH = 128  # additions to a place for each time that it is added to another result
_PARTS, _PARTS_BYTES = 1024, 1 << 24  # of those results, at most
_CACHE = 1 << 19  # bytes of an operand's strip that stay in the second-level cache


class Arg(NamedTuple):
    """An operand without its values: a structure, or the shape and strides of an ordinary tensor."""

    vars: tuple[str, ...]
    structure: Structure | None
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()


class Plan:
    """One statement on operands of known structure.

    ``out`` says what the result is: "dense", the number of the operand whose entries it has, or a format. A plan holds
    index arrays, but no structure: the cache drops it when a structure that it is for is collected.
    """

    def __init__(
        self,
        statement: Statement,
        args: Sequence[Arg],
        sizes: dict[str, int],
        dtype: torch.dtype,
        out: str | int | Format,
    ) -> None:
        given = args
        self.flat = flattened(statement, args, sizes, out)
        if self.flat is not None:
            statement, args, sizes, _ = self.flat
        self.statement, self.args, self.sizes, self.dtype, self.out = statement, args, dict(sizes), dtype, out
        self.like = False  # is the result a dense tensor in the structure of an operand (Masked)?
        self.pattern: weakref.ref[Structure] | None = None  # the structure of a result that has one of an operand
        self.tiling: Tiling | None = None
        self.places: Places | None = None
        if out != "dense" and self.flat is not None:
            out = out if isinstance(out, int) else self.flat.like
        if isinstance(out, int) and (like := given[out].structure) is not None:
            self.pattern = weakref.ref(like)
            self.out, self.like = ("dense", True) if like.plain or self.flat else (out, False)
        self.views: list[View | None] = [self._view(arg) for arg in args]
        self._keep_whole()
        self.choice = self._choose()
        self.tiling = self._tile()
        self.kernel: Kernel = kernel(self._program())
        self._bind()
        self.described = [described(a, v, self.flat is not None) for a, v in zip(given, self.views, strict=True)]
        self._shared = {id(array) for a in given if a.structure for array in a.structure.arrays.values()}
        self.args = [arg._replace(structure=None) for arg in self.args]

    # -- operands

    def _view(self, arg: Arg) -> View | None:
        if arg.structure is None or arg.structure.plain:
            return None
        found = native(arg.structure)
        return found if found is not None else repacked(arg.structure, tuple(range(len(arg.shape))))

    def _keep_whole(self) -> None:
        """A dimension may be cut into blocks only where no other sparse operand, and no sparse output, shares it."""
        shared = [v for k, a in enumerate(self.args) if self.views[k] is not None for v in a.vars]
        shared += list(self.statement.output) if isinstance(self.out, Format) else []
        for k, (arg, view) in enumerate(zip(self.args, self.views, strict=True)):
            if view is None or arg.structure is None:
                continue
            cut = view.cut and any(shared.count(v) > 1 for v in arg.vars)
            loose = any(not level.walk.ordered for level in view.levels if level.walk) and len(set(arg.vars)) < len(
                arg.vars
            )
            if cut or loose:
                self.views[k] = repacked(arg.structure, tuple(range(len(arg.shape))))

    def _loop_vars(self, k: int, view: View) -> tuple[str, ...]:
        """Loop variables of an operand's levels: its indices, with numbers where they are cut."""
        own = self.args[k].vars
        count = [d for d, _ in view.parts]
        return tuple(
            self.tiling.tile if d < 0 and self.tiling else own[d] if count.count(d) == 1 else f"{own[d]}.{n}"
            for n, (d, _) in enumerate(view.parts)
        )

    def _derived(self) -> tuple[Derived, ...]:
        found = []
        for k, view in enumerate(self.views):
            if view is None or not view.cut:
                continue
            loops = self._loop_vars(k, view)
            for d, name in enumerate(self.args[k].vars):
                parts = tuple((v, w) for v, (dim, w) in zip(loops, view.parts, strict=True) if dim == d)
                if len(parts) > 1:
                    found.append(Derived(name, parts, d in view.guards))
                    self.sizes |= {v: view.sizes[loops.index(v)] for v, _ in parts}
        return tuple(found)

    def _strided(self, k: int) -> tuple[int, ...]:
        """Strides of an ordinary operand, as the kernel will see it."""
        arg = self.args[k]
        if arg.stride:
            return arg.stride
        stride, out = 1, []  # type: int, list[int]
        for size in reversed(arg.shape):
            out.insert(0, stride)
            stride *= max(size, 1)
        return tuple(out)

    def _given(self, k: int, view: View | None) -> Given:
        arg = self.args[k]
        count = 1.0
        for size in arg.shape:
            count *= size
        if view is None:
            strides = self._strided(k)
            ones = [v for v, s in zip(arg.vars, strides, strict=True) if s == 1]
            return Given(Strided(arg.vars, max(ones, key=lambda v: self.sizes[v], default=None)), (), count)
        assert arg.structure is not None
        places = torch.Size(arg.structure.value_shape).numel()  # padding is walked too
        return Given(view.stack(self._loop_vars(k, view)), view.fans, float(places))

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
        derived = self._derived()
        given = [self._given(k, view) for k, view in enumerate(self.views)]
        best = self._scheduled(given, derived)
        if derived and best is None:
            self.views = [
                v if v is None or not v.cut else repacked(a.structure, tuple(range(len(a.shape))))  # type: ignore[arg-type]
                for v, a in zip(self.views, self.args, strict=True)
            ]
            return self._choose()
        for k, view in enumerate(self.views):  # would it pay to sort an operand in another order?
            if view is None or view.cut or len(self.args[k].shape) < 2:
                continue
            for order in self._orders(k, view):
                trial = [self._turned(k, order) if j == k else g for j, g in enumerate(given)]
                found = self._scheduled(trial, derived)
                if found is None:
                    continue
                found = replace(found, cost=found.cost + TURN * given[k].count)
                if best is None or found.cost < best.cost:
                    best, self.views[k], given = found, repacked(self.args[k].structure, order), trial  # type: ignore[arg-type]
                    given[k] = self._given(k, self.views[k])
        if best is None:
            return self._all_searchable()
        return best

    def _all_searchable(self) -> Choice:
        """Repack everything: compressed levels can be walked and searched in any order of loops."""
        self.views = [
            v if v is None else repacked(a.structure, tuple(range(len(a.shape))))  # type: ignore[arg-type]
            for v, a in zip(self.views, self.args, strict=True)
        ]
        found = self._scheduled([self._given(k, view) for k, view in enumerate(self.views)], ())
        if found is None:
            raise NotImplementedError(f"no order of loops computes {self.statement}")
        return found

    def _orders(self, k: int, view: View) -> list[tuple[int, ...]]:
        now = tuple(d for d, _ in view.parts)
        n = len(now)
        every = itertools.permutations(range(n)) if n <= 3 else [tuple(range(n)), tuple(reversed(range(n)))]
        return [order for order in every if order != now]

    def _turned(self, k: int, order: tuple[int, ...]) -> Given:
        arg = self.args[k]
        assert arg.structure is not None
        nnz = arg.structure.nnz
        like = View(
            stack_for(order, arg.shape, nnz), _NO_ARRAYS, (), tuple((d, 1) for d in order), frozenset(), (), None
        )
        return Given(like.stack(self._loop_vars(k, like)), fans_for(order, arg.shape, nnz), float(nnz))

    def _scheduled(self, given: list[Given], derived: tuple[Derived, ...]) -> Choice | None:
        s, output = self.statement, self._output()
        sizes, stacks = tuple(self.sizes.items()), tuple(given)
        found = schedule(s.tree, stacks, sizes, output, derived, s.reduce)
        if output.kind != "rows":
            return found
        other = schedule(s.tree, stacks, sizes, Output("keys", output.vars), derived, s.reduce)
        return other if found is None or (other is not None and other.cost < found.cost) else found

    def _tile(self) -> Tiling | None:
        """Cut the loops of a result that has an operand's entries, where that pays."""
        if not isinstance(self.out, int) or self.statement.reduce != "sum" or self._derived():
            return None
        if (view := self.views[self.out]) is None or view.cut:
            return None
        found = tiling(self.choice, self.args, self.out, view, self.sizes, self.dtype)
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
            operand = self._given(k, view).operand
            if k in choice.copies and isinstance(operand, Strided):
                operand = Strided(operand.vars, last)
            operands.append(operand)
        unit = choice.strip if choice.strip in s.output else None
        output = self._output(unit)
        if output.kind == "rows" and choice.method == "sort":
            output = Output("keys", output.vars)
        if output.kind == "rows" and choice.order[: len(output.vars) - 1] != output.vars[:-1]:
            output = Output("keys", output.vars)
        derived = tuple(d for d in self._derived())
        program = Program(s, s.tree, tuple(operands), output, choice.order, C_TYPES[self.dtype], choice.strip, derived)
        order = nest_order(choice, program.out_vars, self._outside(choice))
        workspace = None
        if choice.method == "workspace":
            size = self.sizes[output.vars[-1]]
            workspace = "dense" if size <= _SMALL else "wide" if size <= _LARGE else "hash"
        program = replace(program, order=order, workspace=workspace, long=self._long())
        if (t := self.tiling) is None:
            return program
        return replace(program, order=(*t.outside, *order), outside=t.outside, turns=((t.var, t.turns),))

    def _long(self) -> bool:
        """May a sum have so many terms that it must be made of blocks?"""
        if self.statement.reduce not in ("sum", "mean"):
            return False
        walks = [None if v is None else (v, self._loop_vars(k, v)) for k, v in enumerate(self.views)]
        out = {
            *self.statement.output,
            *(v for d in self._derived() if d.var in self.statement.output for v, _ in d.parts),
        }
        summed = {v: self.sizes[v] for v in self.choice.order if v not in out}
        return longest(self.statement.tree, walks, summed) > LONG

    def _outside(self, choice: Choice) -> bool:
        """Is an ordinary operand too large for the cache, so that a strip of it should serve all rows?"""
        if choice.strip is None or self.sizes[choice.strip] < 128:
            return False
        bytes_each = torch.empty((), dtype=self.dtype).element_size()
        wide = [a for k, a in enumerate(self.args) if self.views[k] is None and choice.strip in a.vars]
        return any(bytes_each * torch.Size(a.shape).numel() > _CACHE for a in wide)

    # -- running

    def _bind(self) -> None:
        """Work out pointers and sizes once."""
        program = self.kernel.program
        numbers = {names.size(v): self.sizes[v] for v in (*program.order, *(d.var for d in program.derived))}
        arrays: dict[str, Tensor] = {}
        self.copies: dict[int, tuple[int, ...]] = {}
        last = self.choice.order[-1] if self.choice.order else None
        for k, (arg, view) in enumerate(zip(self.args, self.views, strict=True)):
            name = operand_name(k)
            if view is None:
                stride = self._strided(k)
                if k in self.choice.copies and last is not None:
                    d = len(arg.vars) - 1 - arg.vars[::-1].index(last)
                    self.copies[k] = (*(x for x in range(len(arg.vars)) if x != d), d)
                    stride = _strides_in(arg.shape, self.copies[k])
                if self.tiling and k in self.tiling.packs:
                    d = arg.vars.index(self.tiling.part)
                    self.copies[k] = (d, *(x for x in range(len(arg.vars)) if x != d))
                    stride = _strides_in(arg.shape, self.copies[k])
                numbers |= {names.stride(name, d): s for d, s in enumerate(stride)}
                continue
            for n, level in enumerate(view.levels):
                arrays |= {names.array(k, a, n): view.arrays[f"{a}{n}"] for a in ([] if level.full else level.arrays)}
                numbers |= {names.array(k, x, n): value for x, value in view.own_numbers(n).items()}
        self.out_shape = tuple(self.sizes[v] for v in self.statement.output)
        self.out_perm: tuple[int, ...] | None = None
        if program.output.kind == "dense" and program.output.unit not in (
            None,
            self.statement.output[-1:] and self.statement.output[-1],
        ):
            d = self.statement.output.index(program.output.unit)
            self.out_perm = (*(x for x in range(len(self.out_shape)) if x != d), d)
        out_stride = _strides_in(self.out_shape, self.out_perm or tuple(range(len(self.out_shape))))
        numbers |= {names.stride(names.OUT, d): s for d, s in enumerate(out_stride)}
        numbers[names.TOTAL] = math.prod(self.out_shape)
        nest = self.kernel.nest
        self.sizes_array = (ctypes.c_long * max(len(nest.sizes), 1))(*(numbers[n] for n in nest.sizes))
        self.keep = [a.contiguous() for a in arrays.values()]  # pointers must stay good
        self.arrays = at = dict(zip(arrays, self.keep, strict=True))
        self.numbers = numbers
        self.pointers = [at[n].data_ptr() if n in at else 0 for n, _ in nest.arrays]
        self.slot = {n: i for i, (n, _) in enumerate(nest.arrays)}
        self.value_slots = [self.slot[names.values(k)] for k in range(len(self.args))]
        self.units = self.kernel.units(numbers, at)
        self.as_they_are = not self.copies and all(v is None or v.index is None for v in self.views)
        weight = _SCATTER if self.choice.method == "workspace" else 1
        self.parts = self._parts() if nest.parts else 0
        self.alone = self.choice.turns * weight < _ALONE or self.units < 2

    def _parts(self) -> int:
        """How many results are made and added up: so many that it costs little, whatever the number of threads.

        They are what threads share, and make the error of a long sum small.
        """
        places, size = max(math.prod(self.out_shape), 1), self.dtype.itemsize
        most = min(int(self.choice.turns) // (_EACH * places), _PARTS, _PARTS_BYTES // (places * size), self.units)
        return max(most, 1) if self.choice.turns > _ALONE else 1

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        """Run on these values; return those of the result, and its structure if it is sparse."""
        pointers, ready = list(self.pointers), self.ready(values)
        for k, slot in enumerate(self.value_slots):
            pointers[slot] = ready[k].data_ptr()
        threads = 1 if self.alone else torch.get_num_threads()
        if self.out == "dense":
            result, like = self._dense(pointers, threads, values), self._structure() if self.like else None
            return (result if like is None else result.view(like.value_shape)), like
        if isinstance(self.out, int):
            return self._pattern(pointers, threads, values[self.out])
        assert isinstance(self.out, Format)
        return assemble(self, pointers, threads)

    def ready(self, values: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the values as the kernel reads them: in the order of a repacked view, or copied along a loop."""
        values = [
            v if a.stride or v.is_contiguous() else v.contiguous() for v, a in zip(values, self.args, strict=True)
        ]
        if self.as_they_are:
            return values
        out = []
        for k, value in enumerate(values):
            view = self.views[k]
            if view is not None and view.index is not None:
                flat, n = value.reshape(-1), view.index.numel()
                value = moved(flat, view.index, None, n, n) if enough(n) else flat[view.index]
            elif k in self.copies:
                value = value.reshape(self.args[k].shape).permute(self.copies[k]).contiguous()
            out.append(value)
        return out

    def _dense(self, pointers: list[int], threads: int, values: Sequence[Tensor]) -> Tensor:
        shape = self.out_shape if self.out_perm is None else tuple(self.out_shape[d] for d in self.out_perm)
        out = fresh((max(self.parts, 1), *shape), self.dtype, zero=not self.kernel.covers)
        pointers[self.slot[names.OUT]] = out.data_ptr()
        self.kernel.run("fill", pointers, self.sizes_array, self.parts or 4 * threads, threads=threads)
        out = out[0] if self.parts < 2 else out.sum(0, dtype=self.dtype)
        if self.out_perm is None:
            return out
        return out.permute([self.out_perm.index(d) for d in range(len(shape))]).contiguous()

    def _pattern(self, pointers: list[int], threads: int, like: Tensor) -> tuple[Tensor, Structure | None]:
        assert isinstance(self.out, int)
        view = self.views[self.out]
        index = None if view is None else view.index
        out = fresh(like.shape if index is None else index.shape, self.dtype, zero=not self.kernel.covers)
        pointers[self.slot[names.OUT]] = out.data_ptr()
        self.kernel.run("fill", pointers, self.sizes_array, chunks(threads, out.numel()), threads=threads)
        if index is not None:
            out = torch.zeros(like.numel(), dtype=self.dtype).index_put_((index,), out)
            out = out.view(like.shape)
        return out, self._structure()

    def _structure(self) -> Structure | None:
        """Return the structure of the operand whose entries the result has."""
        return None if self.pattern is None else self.pattern()

    def nbytes(self) -> int:
        """Bytes of the index arrays that it keeps besides those of the operands."""
        views = [a for v in self.views if v is not None for a in (*v.arrays.values(), v.index) if a is not None]
        kept = {id(a): a.numel() * a.element_size() for a in (*self.keep, *views) if id(a) not in self._shared}
        sparse = isinstance(self.out, Format)  # it will keep where the rows of the result begin
        rows = math.prod(self.out_shape[:-1]) if self.kernel.program.output.kind == "rows" else 1
        return sum(kept.values()) + (16 * (self.units + rows) if sparse else 0)

    def explain(self) -> str:
        """Say what was chosen, and why."""
        return explained(self)


def _strides_in(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of each dimension of a tensor that lies in memory with its dimensions in this order."""
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= max(shape[d], 1)
    return tuple(strides)


class _NoArrays(dict):
    """Stands for index arrays that are not made yet: int32 by any name."""

    def __missing__(self, name: str) -> Tensor:
        return torch.empty(0, dtype=torch.int32)


_NO_ARRAYS = _NoArrays()
