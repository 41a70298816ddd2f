"""What a plan chose, and why, in words: ``gs.compile(...).explain()``."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.loops.by_hand import Loops, spelled
from gossamer.compiler.run.views import View, native, without_empty_rows
from gossamer.formats import Format

if TYPE_CHECKING:
    from gossamer.compiler.run.args import Arg
    from gossamer.compiler.run.plans import Plan


def explained(plan: Plan) -> str:
    """Say what was chosen for a plan, and why."""
    program, choice = plan.kernel.program, plan.choice
    lines = [str(plan.statement)]
    for k, words in enumerate(plan.stored_as):
        lines.append(f"  {operand_name(k)}: {words}")
        if k in plan.copies:
            packed = plan.tiling is not None and k in plan.tiling.packs
            lines[-1] += ", copied part by part" if packed else f", copied so that {choice.order[-1]!r} is contiguous"
    form = f"the entries of {operand_name(plan.out)}" if isinstance(plan.out, int) else plan.out
    lines.append(f"  result: {'the entries of an operand' if plan.like else form}")
    lines.append(f"  loops: {' > '.join(program.order)}, about {choice.turns:,.0f} innermost turns, {_chosen(plan)}")
    if plan.flat is None:
        lines.append(f"  by hand: loops={loops_of(plan)}")
    if (t := plan.tiling) is not None:
        cut = f"in {t.parts} parts of {t.turns}" if t.parts > 1 else f"{t.turns} turns, known to the kernel"
        lines.append(f"  {t.var!r} {cut}: what a row shares stays in registers")
        if t.view is not None:
            lines.append(
                f"  columns in {t.view.sizes[0]} tiles of {-(-t.view.sizes[2] // t.view.sizes[0]):,}, for the cache"
            )
    if program.strip:
        lines.append(f"  {program.strip!r} in strips of vectors, sums in registers")
    if program.scatters:
        lines.append(
            f"  a {program.workspace} workspace over {program.output.vars[-1]!r} gathers each row of the result"
        )
    if choice.method == "sort":
        lines.append("  entries of the result come out of order: they are sorted and summed at the end")
    nest = plan.kernel.nest
    if nest.units is None:
        lines.append("  one thread: the outermost loop does not write places of its own")
    else:
        by = f"cut by {nest.weights} into chunks of about as many entries" if nest.weights else "cut evenly"
        lines.append(f"  threads share the outermost of {plan.units:,} turns, {by}")
        lines += ["  one thread here: too little work for two"] if plan.alone else []
    return "\n".join(lines)


def _chosen(plan: Plan) -> str:
    by_hand = plan.loops is not None and plan.loops.order is not None
    return "in the order that was given" if by_hand else "the cheapest order found"


def loops_of(plan: Plan) -> Loops:
    """Return the loops of a plan as they are given by hand.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.ops.plans_of import plan_of
    >>> loops_of(plan_of("ik,kj->ij", [gs.from_dense(torch.eye(4), gs.CSR()), torch.eye(4)]))
    gs.Loops(order='ikj', strip='j')
    """
    program, choice, tiles = plan.kernel.program, plan.choice, plan.tiling
    view = None if tiles is None else tiles.view
    return Loops(
        spelled(choice.order) or None,
        choice.strip or ("" if plan.loops is not None and plan.loops.strip == "" else None),
        None if view is None else -(-view.sizes[2] // view.sizes[0]),
        program.workspace if program.scatters else None,
        None if plan.loops is None else plan.loops.threads,
    )


class Stored(NamedTuple):
    """How an operand is stored and walked, for a plan that outlives it."""

    format: Format | None  # None: it is an ordinary tensor
    entries: int
    walked: str

    def __str__(self) -> str:
        if self.format is None:
            return "dense"
        entries = f"{self.entries:,} entries, " if self.entries else ""
        return f"{self.format}, {entries}{self.walked}"


def stored(arg: Arg, view: View | None, flat: bool = False) -> Stored:
    """Describe an operand."""
    structure = arg.structure
    if structure is None:
        return Stored(None, 0, "")
    if flat:
        return Stored(structure.format, structure.nnz, "values alone: all operands have one pattern")
    if view is None:
        return Stored(structure.format, 0, "read as the dense tensor that it stores")
    if native(structure) is view or (view.index is None and any(d < 0 for d, _ in view.parts)):
        return Stored(structure.format, structure.nnz, "walked as it is stored")
    if view is without_empty_rows(structure):
        return Stored(structure.format, structure.nnz, "walked as it is stored, without empty rows")
    order = ", ".join(arg.vars[d] for d in dict.fromkeys(d for d, _ in view.parts) if d >= 0)
    return Stored(structure.format, structure.nnz, f"sorted by ({order}) and kept")
