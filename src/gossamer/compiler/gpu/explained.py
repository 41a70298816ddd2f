"""What a plan for the GPU chose, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.compiler.language.tree import operand_name

if TYPE_CHECKING:
    from gossamer.compiler.gpu.plan import GpuPlan


def explained(plan: GpuPlan) -> str:
    """Say what was chosen for a plan."""
    lines = [f"{plan.statement}, on the GPU"]
    design = plan.design
    for k, words in enumerate(plan.stored_as):
        lines.append(f"  {operand_name(k)}: {words.format or 'dense'}")
        if design is None:
            continue
        if k == design.roles.lead:
            by = ", ".join(design.loops)
            lines[-1] += f", leads: its entries by ({by})" + ("" if design.sorted.where is None else ", sorted once")
        elif k in design.views:
            lines[-1] += ", searched"
        elif plan.bound is not None and k in plan.bound.copies:
            lines[-1] += f", copied so that {design.unit!r} is contiguous"
    if design is None:
        return "\n".join([*lines, "  torch computes it on the values alone"])
    lines.append(f"  loops: {' > '.join(design.order)}, about {plan.turns:,.0f} innermost turns")
    lines.append(f"  {design.mapping}")
    pieces = f"  {design.cut.number:,} turns of the outermost loop"
    if design.cut.slot is not None:
        slots = plan.steps[0].slots
        pieces += f"; rows of many entries are cut into pieces, and {slots:,} sums of pieces are added up in order"
    lines.append(pieces)
    lines.append(f"  {len(plan.steps)} launch{'es' if len(plan.steps) > 1 else ''}, the same bits every time")
    return "\n".join(lines)
