"""Design: the program of a statement for the GPU. The lead, the order of loops, what the lanes share, pieces."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from gossamer.compiler.gpu import mapping as maps
from gossamer.compiler.gpu.mapping import Mapping
from gossamer.compiler.gpu.pieces import Cut, Groups, Walked, cut, in_order, walked
from gossamer.compiler.language.algebra import needed
from gossamer.compiler.language.program import Operand, Output, Program, Stack, Strided
from gossamer.compiler.language.statement import Statement
from gossamer.compiler.language.tree import Access, Op
from gossamer.compiler.run.args import Arg, strides_in
from gossamer.compiler.run.views import View, repacked
from gossamer.formats import Format, Structure

SLOT = "entry.slot"  # the loop over sums of pieces
PIECE = "entry.piece"  # the loop over pieces that have no coordinates, because the result has none


class NoKernelError(NotImplementedError):
    """No loops on the GPU compute a statement; the message says why."""


class Roles(NamedTuple):
    """What each index is for, in the order of the loops."""

    lead: int
    outer: tuple[str, ...]  # of the lead, and of the result: pieces run over them
    free: tuple[str, ...]  # of the result, and of no sparse operand
    inner: tuple[str, ...]  # of the lead, and summed
    late: tuple[str, ...]  # of the result, and of another sparse operand
    summed: tuple[str, ...]  # of other operands alone


def sparse_in(args: Sequence[Arg]) -> list[int]:
    """Which operands have a pattern?"""
    return [k for k, a in enumerate(args) if a.structure is not None and not a.structure.plain]


def roles(statement: Statement, args: Sequence[Arg], out: str | int | Format) -> Roles:
    """Choose the lead: the sparse factor that leaves the fewest indices of the result to others, then the shortest.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.compiler import parse
    >>> a = gs.from_dense(torch.eye(3), gs.CSR()).structure
    >>> args = [Arg(("n", "m"), a, (3, 3)), Arg(("m", "k"), None, (3, 2), (2, 1))]
    >>> found = roles(parse("nm,mk->nk", (2, 2)), args, "dense")
    >>> found.lead, found.outer, found.free, found.inner
    (0, ('n',), ('k',), ('m',))
    """
    if isinstance(out, Format):
        raise NoKernelError(f"the pattern of a result in {out} is not computed on a GPU")
    sparse = sparse_in(args)
    points = needed(statement.tree, frozenset(sparse))
    factors = frozenset.intersection(*points) if points else frozenset()
    factors &= frozenset({out}) if isinstance(out, int) else factors
    usable = [k for k in sorted(factors) if len(set(args[k].vars)) == len(args[k].vars)]
    if not usable:
        raise NoKernelError("no sparse operand is a factor of every term, with each of its indices once")
    found = min((_roles(statement, args, k, sparse) for k in usable), key=lambda r: (len(r.late), _entries(args, r)))
    if found.late and (not found.outer or statement.reduce not in ("sum", "mean")):
        raise NoKernelError("the result has indices of several sparse operands, and none of them leads")
    return found


def _entries(args: Sequence[Arg], found: Roles) -> int:
    structure = args[found.lead].structure
    assert structure is not None
    return math.prod(structure.value_shape)


def _roles(statement: Statement, args: Sequence[Arg], lead: int, sparse: Sequence[int]) -> Roles:
    own, output = args[lead].vars, statement.output
    others = {v for k in sparse if k != lead for v in args[k].vars}
    rest = [v for v in output if v not in own]
    known = {*own, *output}
    summed = dict.fromkeys(v for a in args for v in a.vars if v not in known)
    return Roles(
        lead,
        tuple(v for v in own if v in output),
        tuple(v for v in rest if v not in others),
        tuple(v for v in own if v not in output),
        tuple(v for v in rest if v in others),
        tuple(summed),
    )


class Design:
    """The program of a statement, the arrays of its sparse operands, and how it is mapped to threads."""

    def __init__(
        self,
        statement: Statement,
        args: Sequence[Arg],
        sizes: dict[str, int],
        value: str,
        itemsize: int,
        out: str | int,
        most: int,
    ) -> None:
        self.statement, self.args, self.sizes, self.value = statement, list(args), dict(sizes), value
        self.itemsize, self.out, self.most = itemsize, out, most
        self.roles = roles(statement, args, out)
        self.linear = statement.reduce in ("sum", "mean")
        self.alone = len(sparse_in(args)) == 1
        self._order_indices()
        lead = self.args[self.roles.lead]
        assert lead.structure is not None
        if self._by_rows(lead.structure):
            self.roles = self.roles._replace(outer=self.roles.outer[:-1], inner=self.roles.outer[-1:])
        self.sorted = in_order(lead.structure, tuple(lead.vars.index(v) for v in self.roles.outer))
        entries, groups = lead.structure.nnz, max(self.sorted.groups.counts.numel(), 1)
        self.length = entries / groups
        counts = self.sorted.groups.counts
        #: bytes that each entry reads along the columns that lanes may share
        self.line = self.sizes[self.free[-1]] * self.itemsize if self.free else 0
        self.skewed = bool(counts.numel()) and int(counts.max()) > maps.piece(self.length, self.line)
        self.mapping = self._map()
        self.cut = self._cut()
        self.lead = walked(self.cut, self.sorted.inner, self.sorted.where, self.loops)
        self.views: dict[int, View] = {k: self._view(k) for k in sparse_in(args) if k != self.roles.lead}
        self.program = self._program()

    @property
    def head(self) -> tuple[str, ...]:
        """Loops over pieces."""
        return self.roles.outer or (PIECE,)

    @property
    def loops(self) -> tuple[str, ...]:
        """Loops over the levels of the lead."""
        return (*self.head, *self.roles.inner)

    @property
    def order(self) -> tuple[str, ...]:
        """All loops, outermost first."""
        return (*self.head, *self.free, *self.roles.inner, *self.roles.late, *self.terms)

    def _order_indices(self) -> None:
        """Put the index that lanes may share last: the one that is contiguous in most operands."""
        self.free = self._contiguous_last(self.roles.free, self.statement.output[-1:])
        self.terms = self._contiguous_last(self.roles.summed, ())

    def _contiguous_last(self, names: tuple[str, ...], better: Sequence[str]) -> tuple[str, ...]:
        def rank(v: str) -> tuple[int, bool, int]:
            strides = [(a.strides[a.vars.index(v)]) for a in self._dense() if v in a.vars]
            return sum(s == 1 for s in strides), v in better, self.sizes[v]

        return tuple(sorted(names, key=rank))

    def _dense(self) -> list[Arg]:
        return [a for k, a in enumerate(self.args) if k not in sparse_in(self.args)]

    # -- lanes

    def _map(self) -> Mapping:
        batch = self.free[0] if len(self.free) > 1 and self.sizes[self.free[0]] <= 65535 else ""
        if self.free and not maps.narrow(self.sizes[self.free[-1]]):
            var = self.free[-1]
            strides = self._strides(var) if self.alone and self.linear and not self.roles.late else [1]
            made = maps.strip(var, self.sizes[var], strides, self.itemsize, self.skewed)
            return self._limited(made)._replace(batch=batch)
        if not self.alone or not self.linear or self.roles.late:
            return Mapping()
        if self.terms and not maps.narrow(self.sizes[self.terms[-1]]):
            var = self.terms[-1]
            kept = self._kept() if self.roles.inner else None
            return kept or self._limited(maps.dot(var, self.sizes[var], self._strides(var), self.itemsize))
        return maps.entries(self.roles.inner[0], self.length) if self.roles.inner else Mapping()

    def _kept(self) -> Mapping | None:
        """Return the mapping with rows of an operand in registers, if there are loops for it."""
        if not self.alone or not self.linear or self.free or self.roles.late or len(self.terms) != 1:
            return None
        var = self.terms[0]
        return maps.rows(var, self.sizes[var], self._strides(var), self.itemsize, self.most)

    def _by_rows(self, structure: Structure) -> bool:
        """Are the entries of a pattern computed row by row, because they share a row of a dense operand?"""
        outer = self.roles.outer
        if not isinstance(self.out, int) or self.roles.inner or len(outer) < 2 or self._kept() is None:
            return False
        return structure.nnz >= 2 * math.prod(self.sizes[v] for v in outer[:-1])

    def _limited(self, made: Mapping) -> Mapping:
        wide = min(made.wide, self.most)
        lanes = min(32, made.lanes * (made.wide // wide)) if made.role == "strip" else made.lanes
        return made._replace(wide=wide, lanes=lanes)

    def _strides(self, var: str) -> list[int]:
        """Strides of all that is read or written along an index, in other directions."""
        found = []
        for a in self._dense():
            if var in a.vars:
                strides = self.strides(a, var)
                found += [s for v, s in zip(a.vars, strides, strict=True) if v != var and self.sizes[v] > 1]
                found += [1 for v, s in zip(a.vars, strides, strict=True) if v == var and s != 1]
        return [*found, self.sizes[var]]

    def strides(self, arg: Arg, var: str) -> tuple[int, ...]:
        """Strides of an ordinary operand, after it is copied if an index is not contiguous in it."""
        return arg.strides if not self.copied(arg, var) else strides_in(arg.shape, last(arg.vars, var))

    def copied(self, arg: Arg, var: str) -> bool:
        """Is an operand copied, so that neighbours along the shared index are neighbours in memory?"""
        return var in arg.vars and arg.strides[arg.vars.index(var)] != 1 and self.sizes[var] > 1

    # -- pieces, other operands, program

    @property
    def most_entries(self) -> int:
        """How many entries a piece may have."""
        short = self.mapping.role == "strip" or isinstance(self.out, int)
        return maps.piece(self.length, self.line) if short else 32 * self.mapping.lanes

    def _cut(self) -> Cut:
        whole = not self.linear or bool(self.roles.late) or not self.roles.inner
        groups = self.sorted.groups
        made = cut(groups, 1 << 62 if whole else self.most_entries)
        if isinstance(self.out, int):  # each entry has its own place in the result, so pieces are not added up
            return made._replace(slot=None, rest=None)
        return made if self.roles.outer else numbered(made)

    def _view(self, k: int) -> View:
        arg = self.args[k]
        assert arg.structure is not None
        dims = sorted(range(len(arg.vars)), key=lambda d: self.order.index(arg.vars[d]))
        return repacked(arg.structure, tuple(dims))

    def _program(self) -> Program:
        operands: list[Operand] = []
        for k, arg in enumerate(self.args):
            if k == self.roles.lead:
                operands.append(self.lead.stack)
            elif k in self.views:
                view = self.views[k]
                operands.append(view.stack([arg.vars[d] for d, _ in view.parts]))
            else:
                operands.append(Strided(arg.vars, self.unit if self.unit in arg.vars else None))
        s, strip = self.statement, self.mapping.var if self.mapping.role == "strip" else None
        head = () if self.roles.outer else (PIECE,)
        output = Output("dense", (*head, *s.output), strip)
        if isinstance(self.out, int):
            output = Output("pattern", s.output, None, self.out)
        made = Program(s, s.tree, tuple(operands), output, self.order, self.value, strip, lead=self.roles.lead)
        return replace(made, pieces=self.cut.slot is not None)

    @property
    def unit(self) -> str:
        """The index whose neighbours are neighbours in memory, wherever it is: the one that lanes share."""
        return self.mapping.var if self.mapping.var not in self.roles.inner else ""


def last(vars: Sequence[str], var: str) -> tuple[int, ...]:
    """Return dimensions with that of one index last.

    Examples
    --------
    >>> last("ikj", "k")
    (0, 2, 1)
    """
    d = tuple(vars).index(var)
    return (*(x for x in range(len(vars)) if x != d), d)


def numbered(pieces: Cut) -> Cut:
    """Return pieces of a single group, whose sums all have a slot: the caller adds them up."""
    starts = pieces.starts
    return pieces._replace(slot=torch.arange(pieces.number, dtype=starts.dtype, device=starts.device))


class Rest(NamedTuple):
    """The program that adds up sums of pieces, as :class:`Design` is for the rest."""

    program: Program
    mapping: Mapping
    cut: Cut
    lead: Walked


def rest(design: Design, groups: Groups) -> Rest:
    """Return the program that adds up the slots of each group: a nest like the first, over slots for entries."""
    outer, output = design.roles.outer, design.program.output
    mapping = design.mapping
    if mapping.role != "strip":
        mapping = Mapping("sum", SLOT, 32, 1, 2)
    pieces = cut(groups, maps.SLOTS)
    lead = walked(pieces, [None], None, (*outer, SLOT))
    free = design.program.free
    tree = Op("*", (Access(0, stored=True), Access(1)))
    statement = Statement(((*outer, SLOT), (SLOT, *free)), output.vars, tree)
    operands: tuple[Stack | Strided, ...] = (lead.stack, Strided((SLOT, *free), design.program.strip))
    order = (*outer, *design.free, SLOT)
    made = Program(statement, tree, operands, output, order, design.value, design.program.strip, lead=0, sums=(1,))
    return Rest(replace(made, pieces=pieces.slot is not None), mapping, pieces, lead)
