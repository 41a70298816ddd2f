"""Plans for new patterns: the plan of a pattern that looks alike, with pointers to other index arrays.

What a plan decides depends on formats, sizes and statistics. All that is left for a pattern with the same ones is to
look up its arrays, which takes a tenth of the time of planning.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import names_in
from gossamer.compiler.run.args import Arg
from gossamer.compiler.run.flat import flattened
from gossamer.compiler.run.lengths import uneven
from gossamer.compiler.run.views import without_empty_rows
from gossamer.formats import Structure
from gossamer.formats.levels import Compressed, Dense

if TYPE_CHECKING:
    from gossamer.compiler.run.plans import Plan
    from gossamer.compiler.run.views import View

_LEVELS = (Dense, Compressed)  # levels whose arrays say all about them


def look(structures: Sequence[Structure | None], sums: bool = True) -> Hashable:
    """Return what a plan depends on besides formats and sizes.

    Types of arrays, their lengths to two digits, and, where something is summed, if rows differ in length.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> look([gs.from_dense(torch.eye(4), gs.CSR()).structure, None])
    (torch.int32, '5.0e+00', torch.int32, '4.0e+00', False)
    """
    known = [s for s in structures if s is not None]
    arrays = [a for s in known for a in s.arrays.values()]
    return *(x for a in arrays for x in (a.dtype, f"{a.numel():.1e}")), *(uneven(s) for s in known if sums)


class Template:
    """A plan without index arrays."""

    def __init__(self, plan: Plan, args: Sequence[Arg]) -> None:
        own = _copied(plan)
        own.keep, own.arrays, own.places, own.pattern, own.kept = [], {}, None, None, 0
        own.shortcut = None  # it has the pointers of the plan
        own.views = [None if v is None else v._replace(arrays={}) for v in plan.views]
        self.plan = own
        self.like = plan.out if plan.pattern is not None and isinstance(plan.out, int) else None
        self.walked = tuple(k for k, view in enumerate(plan.views) if view is not None)
        self.filled = filled(plan, args)
        self.slots = [
            (k, f"{a}{n}", plan.slot[names.array(k, a, n)])
            for k in self.walked
            for n, level in enumerate(plan.views[k].levels)  # type: ignore[union-attr]
            for a in ([] if level.full else level.arrays)
        ]
        first = next(a.structure for a in args if a.structure is not None)
        alike = [a if a.structure is None else a._replace(structure=first) for a in args]
        same = len({a.shape for a in alike if a.structure is not None}) == 1 and len(self.walked) > 1
        #: with one pattern for all operands there would be another kernel
        self.zips = same and flattened(plan.statement, alike, plan.sizes, plan.out) is not None

    def nbytes(self) -> int:
        """It keeps no tensor."""
        return 0

    def plan_for(self, structures: Sequence[Structure | None]) -> Plan | None:
        """Return the plan for structures that look like those of the template; None if it is not for them."""
        plan, like = _copied(self.plan), None if self.like is None else structures[self.like]
        views = list(plan.views)
        for k in self.walked:
            if (structure := structures[k]) is None:
                return None
            view = without_empty_rows(structure) if k in self.filled else _view(plan.views[k], structure)  # type: ignore[arg-type]
            if view is None or not all(a.is_contiguous() for a in structure.arrays.values()):
                return None
            views[k] = view
            plan.units = round(view.fans[0]) if k in self.filled and plan.kernel.nest.units is not None else plan.units
        if self.zips and _one_pattern([s for s in structures if s is not None]):
            return None
        if plan.sums.long(views) != plan.kernel.program.long:
            return None
        plan.views, plan.pointers = views, list(plan.pointers)
        plan.keep = [views[k].arrays[name] for k, name, _ in self.slots]  # type: ignore[union-attr]
        for (_, _, slot), array in zip(self.slots, plan.keep, strict=True):
            plan.pointers[slot] = array.data_ptr()
        plan.pattern = None if like is None else weakref.ref(like)
        plan.stored_as = [
            said if view is None else said._replace(entries=view.entries)
            for said, view in zip(plan.stored_as, views, strict=True)
        ]
        return plan


def template(plan: Plan, args: Sequence[Arg]) -> Template | None:
    """Return the template of a plan for these operands; None if it depends on more than formats and statistics."""
    if plan.flat is not None or plan.tiling is not None or plan.like or not plan.as_they_are:
        return None
    skipped = filled(plan, args)
    pairs = [(k, v, args[k].structure) for k, v in enumerate(plan.views) if v is not None]
    if not pairs or any(s is None or (v.arrays is not s.arrays and k not in skipped) for k, v, s in pairs):
        return None  # it was repacked
    if any(type(level) not in _LEVELS for _, view, _ in pairs for level in view.levels):
        return None
    units = plan.kernel.nest.units
    read = set() if units is None else names_in(units) & {name for name, _ in plan.kernel.nest.arrays}
    if read - {names.array(k, "pos", 0) for k in skipped}:
        return None  # how many units there are is read from an array
    return Template(plan, args)


def filled(plan: Plan, args: Sequence[Arg]) -> frozenset[int]:
    """Return the operands of a plan whose empty rows are left out."""
    pairs = enumerate(zip(plan.views, args, strict=True))
    found = {
        k for k, (v, a) in pairs if v is not None and a.structure is not None and v is without_empty_rows(a.structure)
    }
    return frozenset(found)


def _copied(plan: Plan) -> Plan:
    """Return a copy with the same attributes, in a quarter of the time of ``copy.copy``."""
    made = object.__new__(type(plan))
    vars(made).update(vars(plan))
    return made


def _view(like: View, structure: Structure) -> View:
    """Return the view of a structure as it is stored, like that of another one of its format and shape."""
    fans, parents = [], 1
    for n, level in enumerate(like.levels):
        positions = parents * like.sizes[n] if level.full else structure.arrays[f"crd{n}"].numel()
        fans.append(positions / max(parents, 1))
        parents = positions
    return like._replace(arrays=structure.arrays, fans=tuple(fans))


def _one_pattern(structures: Sequence[Structure]) -> bool:
    return all(structures[0].same(s) for s in structures[1:])
