"""Statements on dense tensors alone: one kernel where torch's operators would read and write memory many times.

They are steps of larger expressions, such as the quotient of ``sum(ij * jk) / sum(ij) -> ik``, and gradients of such
steps. Products are left to torch: it has better kernels for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.compiler.gpu import mapping as maps
from gossamer.compiler.gpu.kernel import kernel
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.types import VALUES
from gossamer.compiler.language.program import Output, Program, Strided
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Const, Op, Tree, operand_name
from gossamer.compiler.loops import names
from gossamer.compiler.run.args import Arg, strides_in

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_LARGE = 2**31 - 2**21  # numbers that need 64 bits
_BLOCKS = 65535  # along the second and third axis of a grid
_ENTRIES = 1 << 16  # values of the result, or terms of its sums, from which on a kernel is worth a launch of our own


def takes(statement: Statement, args: Sequence[Arg], sizes: dict[str, int], dtype: torch.dtype) -> bool:
    """Is there a kernel for a statement on dense tensors?

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler import parse
    >>> sizes = {"i": 512, "k": 512}
    >>> args = [Arg(("i", "k"), None, (512, 512), (512, 1)), Arg(("i",), None, (512,), (1,))]
    >>> takes(parse("ik / i -> ik", (2, 1)), args, sizes, torch.float32)
    True
    >>> takes(parse("ik,i->ik", (2, 1)), args, sizes, torch.float32)
    False
    """
    output, summed = statement.output, statement.summed
    if statement.multiplies or statement.reduce != "sum" or dtype not in _FLOATS:
        return False
    if not 1 <= len(output) <= 3 - len(summed) or len(summed) > 1:
        return False
    if any(a.structure is not None or len(set(a.vars)) < len(a.vars) for a in args):
        return False
    if any(a.shape != tuple(sizes[v] for v in a.vars) for a in args) or math.prod(sizes.values()) < _ENTRIES:
        return False
    own, last = {v for a in args for v in a.vars}, _shared(statement)
    batch = _batch(statement)
    contiguous = all(a.strides[a.vars.index(last)] == 1 for a in args if last in a.vars)
    fits = (batch is None or sizes[batch] <= _BLOCKS) and (bool(summed) or sizes[last] <= 32 * _BLOCKS)
    return own == {*output, *summed} and contiguous and (fits or (len(output) == 1 and not summed))


def _shared(statement: Statement) -> str:
    """The index that lanes share: the one that is summed, or the last of the result."""
    return (statement.summed or statement.output[-1:])[0]


def _batch(statement: Statement) -> str | None:
    """The index of the result that the third axis of the grid runs over."""
    outer = [v for v in statement.output if v != _shared(statement)]
    return outer[0] if len(outer) > 1 else None


def quotients(tree: Tree) -> Tree:
    """Return a tree with ``a / (b + (a == 0) (b == 0))`` for ``a / b``: the same values, and finite slopes at 0 / 0."""
    if not isinstance(tree, Op):
        return tree
    args = tuple(quotients(arg) for arg in tree.args)
    if tree.name != "/" or isinstance(args[1], Const):
        return Op(tree.name, args)
    none = Op("*", tuple(Op("==", (arg, Const(0.0))) for arg in args))
    return Op("/", (args[0], Op("+", (args[1], none))))


class ElementwisePlan:
    """A statement on dense tensors of known sizes and strides, ready to run on any values."""

    like = False
    out = "dense"

    def __init__(
        self, statement: Statement, args: Sequence[Arg], sizes: dict[str, int], dtype: torch.dtype, wide: int = 16
    ) -> None:
        self.statement, self.dtype, self.sizes, self.args = statement, dtype, dict(sizes), list(args)
        self.shape = tuple(sizes[v] for v in statement.output)
        self.turns = float(math.prod(sizes.values()))
        shared = _shared(statement)
        mapping = self._map(shared, wide)
        strip = shared if mapping.role == "strip" else None
        outer = [v for v in reversed(statement.output) if v != shared]
        order = (*outer, shared)
        units = tuple(Strided(a.vars, shared if shared in a.vars else None) for a in args)
        output = Output("dense", statement.output, strip)
        program = Program(statement, statement.tree, units, output, order, VALUES[dtype][0], strip)
        extents = [sum((n - 1) * s for n, s in zip(a.shape, a.strides, strict=True)) for a in args]
        self.kernel = kernel(program, mapping, max(*extents, math.prod(self.shape)) > _LARGE)
        count = sizes[order[0]]
        batch = sizes[mapping.batch] if mapping.batch else 1
        self.grid = (-(-count // mapping.units), mapping.tiles(sizes[shared]), batch)
        self._bind(count)
        self.narrow: ElementwisePlan | None = None

    def _map(self, shared: str, most: int) -> Mapping:
        size, itemsize = self.sizes[shared], self.dtype.itemsize
        others = [
            s for a in self.args if shared in a.vars for v, s in zip(a.vars, a.strides, strict=True) if v != shared
        ]
        batch = _batch(self.statement) or ""
        if self.statement.summed:
            made = maps.dot(shared, size, [*others, size], itemsize)
        elif len(self.statement.output) > 1:
            made = maps.strip(shared, size, [*others, size], itemsize, False)
        else:
            return Mapping(batch=batch)
        wide = min(made.wide, most)
        lanes = min(32, made.lanes * (made.wide // wide)) if made.role == "strip" else made.lanes
        return made._replace(wide=wide, lanes=lanes, batch=batch)

    def _bind(self, count: int) -> None:
        numbers = {names.size(v): n for v, n in self.sizes.items()} | {names.TOTAL: math.prod(self.shape)}
        for k, arg in enumerate(self.args):
            numbers |= {names.stride(operand_name(k), d): s for d, s in enumerate(arg.strides)}
        strides = strides_in(self.shape, tuple(range(len(self.shape))))
        numbers |= {names.stride(names.OUT, d): s for d, s in enumerate(strides)}
        nest = self.kernel.nest
        slot = {n: i for i, (n, _) in enumerate(nest.arrays)}
        self.places, self.out_at = [slot.get(names.values(k)) for k in range(len(self.args))], slot[names.OUT]
        self.arguments = [0] * len(nest.arrays) + [numbers[n] for n in nest.sizes] + [count]

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, None]:
        """Run on these values; return those of the result."""
        if self.kernel.mapping.wide > 1 and any(v.data_ptr() % 16 for v in values):
            if self.narrow is None:
                self.narrow = ElementwisePlan(self.statement, self.args, self.sizes, self.dtype, 1)
            return self.narrow(values)
        out = values[0].new_empty(self.shape)
        arguments = self.arguments.copy()
        for place, value in zip(self.places, values, strict=True):
            if place is not None:
                arguments[place] = value.data_ptr()
        arguments[self.out_at] = out.data_ptr()
        self.kernel.launch(out.get_device(), self.grid, arguments)
        return out, None

    def nbytes(self) -> int:
        """It keeps no tensors."""
        return 0

    def explain(self) -> str:
        """Say what was chosen."""
        return f"{self.statement}, on the GPU\n  dense operands, one launch; {self.kernel.mapping}"
