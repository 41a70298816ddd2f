"""Results with a pattern of their own: products of two sparse operands, partial sums of one, sums of other patterns.

The pattern follows from those of the operands, so it is found once and kept with the plan. For a product, every entry
of A meets the entries of B with the same coordinates in the indices that they share. These *pairs*, sorted by their
place in the result, are the entries of a sparse operand over (place, entry of A, entry of B), and the values of the
result are one more statement for the GPU: ``qxy,x,y->q``. A sum needs no pairs: its operands are spread over the union
of their patterns, and added value by value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.gpu.design import NoKernelError, sparse_in
from gossamer.compiler.gpu.pieces import Groups, Sorted
from gossamer.compiler.gpu.plan import GpuPlan, Printed
from gossamer.compiler.language.algebra import needed, renumber
from gossamer.compiler.language.interpret import interpret
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Access, Op, operand_name
from gossamer.compiler.run.args import Arg
from gossamer.formats import COO, Format, Structure
from gossamer.formats.keys import ravel, unravel

_MOST = 1 << 28  # pairs: their coordinates and those of a sort take some 16 GB
_Q = "entry"


def pattern_refusal(statement: Statement, args: Sequence[Arg]) -> str | None:
    """Say why the pattern of a result is not computed on a GPU; None if it is.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.compiler import parse
    >>> a = Arg(("i", "j"), gs.from_dense(torch.eye(3), gs.CSR()).structure, (3, 3))
    >>> pattern_refusal(parse("ij,jk->ik", (2, 2)), [a, a._replace(vars=("j", "k"))])
    >>> pattern_refusal(parse("ij->ji", (2,)), [a])
    >>> pattern_refusal(parse("ij->ij", (2,)), [a._replace(structure=None)])
    'the pattern of the result follows from dense operands'
    """
    sparse = sparse_in(args)
    own = {v for k in sparse for v in args[k].vars}
    if not own.issuperset(v for a in args for v in a.vars):
        return "the pattern of the result follows from dense operands"
    if statement.reduce != "sum" or any(len(set(a.vars)) < len(a.vars) for a in args):
        return f"the pattern of a {statement.reduce} is not computed on a GPU"
    if _spreads(statement, args) or _joins(statement, sparse):
        return None
    return "a GPU finds the pattern of products of two operands, and of sums that keep all their indices"


def _joins(statement: Statement, sparse: Sequence[int]) -> bool:
    """Is it made of entries of one operand, or of pairs of entries of two, and dense values at their coordinates?"""
    every = frozenset(sparse)
    return len(every) in (1, 2) and needed(statement.tree, every) == {every}


def _spreads(statement: Statement, args: Sequence[Arg]) -> bool:
    every = frozenset(sparse_in(args))
    same = len(every) == len(args) and all(set(a.vars) == set(statement.output) for a in args)
    return same and frozenset() not in needed(statement.tree, every)


class JoinedPlan:
    """A statement whose result is sparse, with a pattern that the plan has found; as :class:`GpuPlan` otherwise."""

    like = False
    kernel: Printed

    def __init__(
        self, statement: Statement, args: Sequence[Arg], sizes: dict[str, int], dtype: torch.dtype, out: Format
    ) -> None:
        why = pattern_refusal(statement, args)
        if why is not None:
            raise NoKernelError(why)
        self.statement, self.sizes, self.out, self.dtype = statement, dict(sizes), out, dtype
        self.shape = tuple(sizes[v] for v in statement.output)
        self.inner: GpuPlan | None = None
        self.sparse = sparse_in(args)
        self.shapes = [a.shape for a in args]
        entries = {k: _entries(args[k]) for k in self.sparse}
        self.where = {k: found.where for k, found in entries.items()}
        if _joins(statement, self.sparse):
            self._join(args, entries)
        else:
            self._spread(args, entries)

    def _join(self, args: Sequence[Arg], entries: dict[int, _Found]) -> None:
        own = [args[k] for k in self.sparse]
        met = pairs(own, [*entries.values()], self.sizes) if len(own) == 2 else (_numbers(entries[self.sparse[0]]),)
        known: dict[str, Tensor] = {}
        for arg, found, number in zip(own, entries.values(), met, strict=True):
            known |= {v: c[number] for v, c in zip(arg.vars, found.coords, strict=True)}
        key, turn = torch.sort(ravel([known[v] for v in self.statement.output], self.shape), stable=True)
        keys, counts = torch.unique_consecutive(key, return_counts=True)
        self.structure, place = Structure.from_keys(self.out, keys, self.shape)
        dense = dict.fromkeys(v for k, a in enumerate(args) if k not in entries for v in a.vars)
        names = (_Q, *(f"{_Q}.{operand_name(k)}" for k in entries), *dense)
        inner = [*met, *(known[v] for v in dense)]
        shape = (math.prod(self.structure.value_shape), *(e.number for e in entries.values()))
        shape = (*shape, *(self.sizes[v] for v in dense))
        self.lead = _structure(place, counts, [coord[turn] for coord in inner], shape)
        given = [Arg(names, self.lead, shape)]
        for k, arg in enumerate(args):
            vector = Arg((f"{_Q}.{operand_name(k)}",), None, (entries[k].number,), (1,)) if k in entries else None
            given.append(vector or arg._replace(structure=None, stride=arg.strides))
        tree = renumber(self.statement.tree, {k: k + 1 for k in range(len(args))})
        tree = Op("*", (Access(0, stored=True), tree))
        statement = Statement(tuple(a.vars for a in given), (_Q,), tree)
        self.inner = GpuPlan(statement, given, dict(zip(names, shape, strict=True)), self.dtype, "dense")
        self.turns, self.kernel = self.inner.turns, self.inner.kernel

    def _spread(self, args: Sequence[Arg], entries: dict[int, _Found]) -> None:
        keys = []
        for arg, found in zip(args, entries.values(), strict=True):
            own = [found.coords[arg.vars.index(v)] for v in self.statement.output]
            keys.append(ravel(own, self.shape))
        every = torch.unique(torch.cat(keys))
        self.structure, place = Structure.from_keys(self.out, every, self.shape)
        self.places = [place[torch.searchsorted(every, key)] for key in keys]
        self.turns, self.kernel = float(every.numel()), Printed("", "")

    def __call__(self, values: Sequence[Tensor]) -> tuple[Tensor, Structure]:
        """Run on these values; return those of the result, and its structure."""
        flat = [self._values(k, v) for k, v in enumerate(values)]
        shape = self.structure.value_shape
        if self.inner is not None:
            out, _ = self.inner([flat[0], *flat])
            return out.view(shape), self.structure
        spread = [f.new_zeros(math.prod(shape)).index_copy_(0, p, f) for f, p in zip(flat, self.places, strict=True)]
        entry = Statement(((_Q,),) * len(spread), (_Q,), self.statement.tree)
        return interpret(entry, spread).to(self.dtype).view(shape), self.structure

    def _values(self, k: int, values: Tensor) -> Tensor:
        """The values of an operand: in the order of its entries, if it is sparse."""
        if k not in self.where:
            return values.reshape(self.shapes[k])
        where = self.where[k]
        return values.reshape(-1) if where is None else values.reshape(-1)[where]

    def nbytes(self) -> int:
        """Bytes of the index arrays that it keeps."""
        return self.structure.nbytes() + (0 if self.inner is None else self.inner.nbytes() + self.lead.nbytes())

    def explain(self) -> str:
        """Say what was chosen, and why."""
        head = f"{self.statement}, on the GPU\n  result: {self.out}, {self.structure.nnz:,} entries, found once"
        if self.inner is None:
            return f"{head}\n  operands are spread over the union of their patterns; torch computes it on the values"
        return f"{head}, each a sum over entries that meet\n  " + self.inner.explain().replace("\n", "\n  ")


class _Found(NamedTuple):
    """The entries of an operand: coordinates, one tensor a dimension, and where their values are."""

    coords: list[Tensor]
    where: Tensor | None

    @property
    def number(self) -> int:
        return self.coords[0].numel()


def _entries(arg: Arg) -> _Found:
    assert arg.structure is not None
    keys, where = arg.structure.entries()
    return _Found(unravel(keys, arg.shape), where)


def pairs(args: Sequence[Arg], entries: Sequence[_Found], sizes: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return the numbers of all pairs of entries of two operands that agree in the indices which both have."""
    shared = [v for v in args[0].vars if v in args[1].vars]
    numbers = []
    for arg, found in zip(args, entries, strict=True):
        own = [found.coords[arg.vars.index(v)] for v in shared]
        numbers.append(ravel(own, [sizes[v] for v in shared]) if shared else torch.zeros_like(found.coords[0]))
    ordered, order = torch.sort(numbers[1], stable=True)
    low, high = (torch.searchsorted(ordered, numbers[0], right=right) for right in (False, True))
    counts = high - low
    total = int(counts.sum()) if counts.numel() else 0
    if total > _MOST:
        raise NoKernelError(f"{total:,} pairs of entries are more than the {_MOST:,} that a GPU keeps")
    first = torch.repeat_interleave(torch.arange(counts.numel(), device=counts.device), counts, output_size=total)
    within = torch.arange(total, device=counts.device) - (counts.cumsum(0) - counts)[first]
    return first, order[low[first] + within]


def _numbers(entries: _Found) -> Tensor:
    return torch.arange(entries.number, device=entries.coords[0].device)


def _structure(place: Tensor, counts: Tensor, met: Sequence[Tensor], shape: tuple[int, ...]) -> Structure:
    """Entries that meet as a sparse operand over (place in the result, entry of A, ...), in that order already.

    Its entries are never looked for: a number for each place and pair might need more than 64 bits.
    """
    inner = tuple(number.int() for number in met)
    total = inner[0].numel()
    places = torch.repeat_interleave(place.int(), counts, output_size=total)
    arrays = {"pos0": torch.tensor([0, total], device=place.device), "crd0": places}
    made = Structure(COO(), shape, arrays | {f"crd{n + 1}": number for n, number in enumerate(inner)}, place.device)
    made.memo.keep(("gpu", (0,)), Sorted(Groups((place.int(),), counts, place.numel() == shape[0]), inner, None))
    return made
