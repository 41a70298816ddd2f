"""Plans: a statement on operands of known structure, scheduled and compiled, ready to run on any values.

A plan holds all that does not change from call to call: the kernel, pointers to index arrays, sizes, how to
allocate the output. What a call costs beyond its kernel is a few pointers and one allocation.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gossamer.compiler import Kernel, Statement
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.moves import moved
from gossamer.compiler.convert.restack import enough
from gossamer.compiler.emit.prelude import JOINED
from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.loops import names
from gossamer.compiler.loops.by_hand import Loops
from gossamer.compiler.loops.lower import START
from gossamer.compiler.run.args import Arg, strides_in
from gossamer.compiler.run.assemble import Places, assemble
from gossamer.compiler.run.design import Design
from gossamer.compiler.run.explained import explained, stored
from gossamer.compiler.run.flat import flattened
from gossamer.compiler.run.kernel import kernel
from gossamer.compiler.run.shortcut import shortcut
from gossamer.compiler.run.tiling import chunks
from gossamer.formats import Format, Structure

_ALONE = 30_000  # turns below which a second thread costs more than it saves
_SCATTER = 6  # such turns that one takes which adds to a workspace
_MOST = 1 << 16  # threads, more than there are
_EACH = 128  # additions to a place for each time that it is added to another result
_ONE = 1 << 14  # turns for each partial result of one number: it is summed in blocks, in more bits
_PARTS, _PARTS_BYTES = 1024, 1 << 24  # of those results, at most
_QUICK = 1 << 20  # bytes of a dense result below which no page of it is worth a question


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
        loops: Loops | None = None,
    ) -> None:
        given, self.loops = args, loops
        self.threads = _MOST if loops is None or loops.threads is None else loops.threads
        self.flat = flattened(statement, args, sizes, out) if loops is None else None
        if self.flat is not None:
            statement, args, sizes, _ = self.flat
        self.statement, self.dtype, self.out = statement, dtype, out
        self.like = False  # is the result a dense tensor in the structure of an operand (Masked)?
        self.pattern: weakref.ref[Structure] | None = None  # the structure of a result that has one of an operand
        self.places: Places | None = None
        if out != "dense" and self.flat is not None:
            out = out if isinstance(out, int) else self.flat.like
        if isinstance(out, int) and (like := given[out].structure) is not None:
            self.pattern = weakref.ref(like)
            self.out, self.like = ("dense", True) if like.plain or self.flat else (out, False)
        design = Design(statement, args, sizes, dtype, self.out, loops)
        self.views, self.choice, self.tiling, self.sizes = design.views, design.choice, design.tiling, design.sizes
        self.args = design.args
        self.kernel: Kernel = kernel(design.program)
        self.sums = design.sums
        self._bind()
        self.stored_as = [stored(a, v, self.flat is not None) for a, v in zip(given, self.views, strict=True)]
        self.kept = self._kept({id(array) for a in given if a.structure for array in a.structure.arrays.values()})
        self.args = [arg._replace(structure=None) for arg in self.args]

    @property
    def turns(self) -> float:
        """About how many turns the innermost loop has."""
        return self.choice.turns

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
                stride = arg.strides
                if k in self.choice.copies and last is not None:
                    d = len(arg.vars) - 1 - arg.vars[::-1].index(last)
                    self.copies[k] = (*(x for x in range(len(arg.vars)) if x != d), d)
                    stride = strides_in(arg.shape, self.copies[k])
                if self.tiling and k in self.tiling.packs:
                    d = arg.vars.index(self.tiling.part)
                    self.copies[k] = (d, *(x for x in range(len(arg.vars)) if x != d))
                    stride = strides_in(arg.shape, self.copies[k])
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
        out_stride = strides_in(self.out_shape, self.out_perm or tuple(range(len(self.out_shape))))
        numbers |= {names.stride(names.OUT, d): s for d, s in enumerate(out_stride)}
        numbers[names.TOTAL] = math.prod(self.out_shape)
        nest = self.kernel.nest
        self.sizes_array = (ctypes.c_long * max(len(nest.sizes), 1))(*(numbers[n] for n in nest.sizes))
        self.sizes_at = ctypes.addressof(self.sizes_array)
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
        small = math.prod(self.out_shape) * self.dtype.itemsize < _QUICK
        #: are the results of chunks added up by the kernel?
        self.joins = self.parts * math.prod(self.out_shape) * self.dtype.itemsize <= JOINED
        dense = self.out == "dense" and not self.like and self.out_perm is None and (self.parts < 2 or self.joins)
        self.quick = dense and small and self.as_they_are
        #: made by the first call: it builds the kernel
        self.shortcut: Callable[[Sequence[Tensor]], Tensor] | None = None
        self.empty = START[statement.reduce] if (statement := self.statement).reduce in ("top", "bottom") else 0.0
        self.stored = [k for k, arg in enumerate(self.args) if not arg.stride]
        self.out_slot = self.slot[names.OUT]

    def _parts(self) -> int:
        """How many partial results are added up: few enough to cost little, for any number of threads.

        They are what threads share, and make the error of a long sum small.
        """
        places, size = max(math.prod(self.out_shape), 1), self.dtype.itemsize
        each = _EACH * places if places > 1 else _ONE
        most = min(int(self.choice.turns) // each, _PARTS, _PARTS_BYTES // (places * size), self.units)
        return max(most, 1) if self.choice.turns > _ALONE else 1

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        """Run on these values; return those of the result, and its structure if it is sparse."""
        if self.quick:
            for k in self.stored:
                if not values[k].is_contiguous():
                    break
            else:
                run = self.shortcut
                if run is None:
                    run = self.shortcut = shortcut(self)
                return run(values), None
        pointers, ready = list(self.pointers), self.ready(values)
        for k, slot in enumerate(self.value_slots):
            pointers[slot] = ready[k].data_ptr()
        threads = 1 if self.alone else min(torch.get_num_threads(), self.threads)
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
        parts = 1 if self.joins else max(self.parts, 1)
        out = fresh((parts, *shape), self.dtype, zero=not self.kernel.covers)
        if self.empty and not self.kernel.covers:
            out.fill_(self.empty)
        pointers[self.slot[names.OUT]] = out.data_ptr()
        self.kernel.run("fill", pointers, self.sizes_array, self.parts or 4 * threads, threads=threads)
        out = out[0] if parts < 2 else out.sum(0, dtype=self.dtype)
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

    def _kept(self, shared: set[int]) -> int:
        """Bytes of the index arrays that it keeps besides those of the operands, which are known by their ids."""
        views = [a for v in self.views if v is not None for a in (*v.arrays.values(), v.index) if a is not None]
        return sum({id(a): a.nbytes for a in (*self.keep, *views) if id(a) not in shared}.values())

    def nbytes(self) -> int:
        """Bytes that it keeps besides the operands: index arrays, and where the rows of a sparse result begin."""
        if not isinstance(self.out, Format):
            return self.kept
        rows = math.prod(self.out_shape[:-1]) if self.kernel.program.output.kind == "rows" else 1
        return self.kept + 16 * (self.units + rows)

    def explain(self) -> str:
        """Say what was chosen, and why."""
        return explained(self)
