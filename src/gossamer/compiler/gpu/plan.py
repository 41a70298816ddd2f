"""Plans for the GPU: a statement on operands of known structure, ready to run on any values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.gpu.bound import Bound, Step
from gossamer.compiler.gpu.design import Design, NoKernelError, sparse_in
from gossamer.compiler.gpu.explained import explained
from gossamer.compiler.gpu.types import VALUES
from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.program import Strided
from gossamer.compiler.language.statement import Statement, equation
from gossamer.compiler.language.tree import Access, Op, Tree
from gossamer.compiler.loops.lower import START
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.explained import Stored, stored
from gossamer.compiler.run.flat import flattened
from gossamer.formats import Format, Structure


class Printed(NamedTuple):
    """The nests of a plan as text, and their CUDA source."""

    loops: str
    source: str


class GpuPlan:
    """One statement on operands of known structure, on a GPU; NoKernelError if there are no loops for it.

    ``wide`` bounds how many values a lane loads at once: 1 for values that are not aligned.
    """

    def __init__(
        self,
        statement: Statement,
        args: Sequence[Arg],
        sizes: dict[str, int],
        dtype: torch.dtype,
        out: str | int | Format,
        wide: int = 16,
    ) -> None:
        if dtype not in VALUES:
            raise NoKernelError(f"there are no GPU kernels for {str(dtype)[6:]}")
        self.statement, self.dtype, self.sizes, self.asked = statement, dtype, dict(sizes), out
        self.pattern: weakref.ref[Structure] | None = None
        self.like = False  # is the result a dense tensor in the structure of an operand?
        flat = flattened(statement, args, sizes, out)
        if isinstance(out, int) or (flat is not None and out != "dense"):
            like = args[out if isinstance(out, int) else flat.like].structure  # type: ignore[union-attr]
            assert like is not None
            self.pattern = weakref.ref(like)
            self.like, out = (True, "dense") if like.plain or flat else (False, out)
        if isinstance(out, Format):
            raise NoKernelError(f"the pattern of a result in {out} is not computed on a GPU")
        self.out: str | int = out
        self.flat = flat.statement if flat is not None else None
        self.stored_as: list[Stored] = [stored(a, None, flat is not None) for a in args]
        self.design: Design | None = None
        self.bound: Bound | None = None
        self.turns = 0.0  # of innermost loops
        if flat is None and sparse_in(args):
            self._bind(Design(statement, args, sizes, VALUES[dtype][0], dtype.itemsize, out, wide), args)
        self.narrow: GpuPlan | None = None
        self.args = [a._replace(structure=None) for a in args]
        self._owners = [None if a.structure is None else weakref.ref(a.structure) for a in args]

    def _bind(self, design: Design, args: Sequence[Arg]) -> None:
        self.design, self.bound = design, Bound(design, args, self.sizes)
        lead = args[design.roles.lead].structure
        assert lead is not None
        self.covers = self._covers(design, lead)
        self.empty = START[self.statement.reduce] if self.statement.reduce in ("top", "bottom") else 0.0
        self.turns = float(lead.nnz) * math.prod(self.sizes[v] for v in (*design.free, *design.terms))
        operands = enumerate(design.program.operands)
        shared = [k for k, o in operands if isinstance(o, Strided) and design.unit in o.vars]
        self.aligned = [k for k in shared if k not in self.bound.copies] if design.mapping.wide > 1 else []
        # a plan holds arrays, but no structure: the cache drops it when a structure that it is for is collected
        design.args = self.bound.args = [a._replace(structure=None) for a in args]

    def _covers(self, design: Design, lead: Structure) -> bool:
        """Is every place of the result written?"""
        if design.views or design.roles.late:
            return False
        if isinstance(self.out, int):
            return design.sorted.where is None or lead.nnz == math.prod(lead.value_shape)
        return design.cut.every

    @property
    def steps(self) -> list[Step]:
        """The kernels that it launches."""
        return [] if self.bound is None else self.bound.steps

    @property
    def kernel(self) -> Printed:
        """Its loops and its source, to look at."""
        kernels = [step.kernel for step in self.steps]
        return Printed("\n\n".join(k.loops for k in kernels), "\n\n".join(k.source for k in kernels))

    # -- running

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        """Run on these values; return those of the result, and its structure if it is sparse."""
        design, bound = self.design, self.bound
        if design is None or bound is None:
            return self._by_torch(values)
        for k in self.aligned:
            if values[k].data_ptr() % 16:
                return self._narrowly(values)
        ready = self._ready(values, bound)
        if isinstance(self.out, int):
            like = values[self.out]
            out = torch.empty_like(like) if self.covers else torch.zeros_like(like)
            self._launch(ready, out, bound)
            return out, self._structure()
        out = ready[0].new_empty(bound.out.stored)
        if not self.covers:
            out.fill_(self.empty)
        parts = self._launch(ready, out, bound)
        if not design.roles.outer and parts is not None:  # all entries make one sum: that of all pieces
            out = parts.sum(0, dtype=parts.dtype).to(self.dtype)
        if bound.out.turned:
            out = out.permute(bound.out.back).contiguous()
        like_of = self._structure() if self.like else None
        return (out if like_of is None else out.view(like_of.value_shape)), like_of

    def _launch(self, values: Sequence[Tensor], out: Tensor, bound: Bound) -> Tensor | None:
        """Launch all steps; return the sums that the last one leaves."""
        device, parts = out.get_device(), None  # type: int, Tensor | None
        for number, step in enumerate(bound.steps):
            arguments = list(step.arguments)
            if number == 0:
                for k, place in step.values.items():
                    arguments[place] = values[k].data_ptr()
            elif parts is not None:
                arguments[step.values[1]] = parts.data_ptr()
            arguments[step.out] = out.data_ptr()
            before = parts  # it is read until the launch is queued: torch's allocator keeps to the order of the stream
            if step.slots and step.part is not None:
                parts = torch.empty((step.slots, *bound.part.stored), dtype=VALUES[self.dtype][1], device=out.device)
                arguments[step.part] = parts.data_ptr()
            if all(step.grid):
                step.kernel.launch(device, step.grid, arguments)
            del before
        return parts

    def _ready(self, values: Sequence[Tensor], bound: Bound) -> list[Tensor]:
        """Values as the kernel reads them."""
        out = []
        for k, value in enumerate(values):
            if k in bound.copies:
                value = value.reshape(self.args[k].shape).permute(bound.copies[k]).contiguous()
            elif not self.args[k].stride and not value.is_contiguous():
                value = value.contiguous()
            view = bound.design.views.get(k)
            if view is not None and view.index is not None:
                value = value.reshape(-1)[view.index]
            out.append(value)
        return out

    def _narrowly(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        """Run on values that are not aligned for wide loads."""
        if self.narrow is None:
            args = [a._replace(structure=r() if r else None) for a, r in zip(self.args, self._owners, strict=True)]
            self.narrow = GpuPlan(self.statement, args, self.sizes, self.dtype, self.asked, 1)
        return self.narrow(values)

    def _by_torch(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure | None]:
        """Compute on the values alone: operands of one pattern, or stored as dense tensors."""
        statement = self.flat or self.statement
        if self.flat is not None:
            given = [v.reshape(-1) if names else v for v, names in zip(values, self.flat.inputs, strict=True)]
        else:
            given = [v.reshape(a.shape) for v, a in zip(values, self.args, strict=True)]
        if statement.multiplies:
            out = torch.einsum(equation(statement), *given)
        else:
            out = interpret(*_with_ones(statement, given)).to(self.dtype)
        like = self._structure() if self.like else None
        return (out if like is None else out.reshape(like.value_shape)), like

    def _structure(self) -> Structure | None:
        return None if self.pattern is None else self.pattern()

    def nbytes(self) -> int:
        """Bytes of the index arrays that it keeps besides those that are kept with the structures."""
        return 0 if self.bound is None else self.bound.nbytes()

    def explain(self) -> str:
        """Say what was chosen, and why."""
        return explained(self)


def _with_ones(statement: Statement, values: Sequence[Tensor]) -> tuple[Statement, list[Tensor]]:
    """Put an operand of ones for each that is only asked for its entries: every value here is one."""
    inputs, given = list(statement.inputs), list(values)

    def put(tree: Tree) -> Tree:
        if isinstance(tree, Access) and tree.stored:
            inputs.append(inputs[tree.operand])
            given.append(torch.ones_like(values[tree.operand]))
            return Access(len(inputs) - 1)
        return Op(tree.name, tuple(put(arg) for arg in tree.args)) if isinstance(tree, Op) else tree

    tree = put(statement.tree)
    return Statement(tuple(inputs), statement.output, tree, statement.reduce), given
