"""What the kernel of a program takes: its arrays and integers, in order, and what its work is weighed by."""

from __future__ import annotations

from gossamer.compiler.language.program import Program, Stack, Strided
from gossamer.compiler.language.tree import operand_name
from gossamer.compiler.loops import names


def arrays(program: Program) -> tuple[tuple[str, str], ...]:
    """Arrays in the order in which the kernel takes them: those of the operands, then those of the output."""
    out: list[tuple[str, str]] = []
    for k, o in enumerate(program.operands):
        if isinstance(o, Stack):
            out += [(names.array(k, a, level.number), ctype) for level in o.levels for a, ctype in level.arrays]
        out.append((names.values(k), "real" if k in program.sums else program.value))
    kind = program.output.kind
    if kind in ("dense", "pattern"):
        return (*out, (names.OUT, program.value), *(((names.PART, "real"),) if program.pieces else ()))
    crd = "int" if kind == "rows" else "long"
    return (*out, (names.OUT_CRD, crd), (names.OUT, program.value), (names.OUT_COUNT, "long"))


def sizes(program: Program) -> tuple[str, ...]:
    """Integers in the order in which the kernel takes them: sizes of variables, strides, integers of levels."""
    found = [names.size(v) for v in (*program.order, *(d.var for d in program.derived))]
    for k, o in enumerate(program.operands):
        if isinstance(o, Strided):
            found += [names.stride(operand_name(k), d) for d, v in enumerate(o.vars) if v != o.unit]
        else:
            found += [names.array(k, n, level.number) for level in o.levels for n in level.numbers]
    if program.output.kind == "dense":
        found.append(names.TOTAL)
        found += [names.stride(names.OUT, d) for d, v in enumerate(program.output.vars) if v != program.output.unit]
    if program.pieces:
        found += [names.stride(names.PART, d) for d, v in enumerate(program.free) if v != program.output.unit]
    return tuple(found)


def weights(program: Program) -> str | None:
    """Return an array that counts the work before each unit: pos of the level below the first."""
    first = program.order[program.root] if program.order else None
    for k, o in enumerate(program.operands):
        if not isinstance(o, Stack):
            continue
        levels = [level for level in o.levels if level.var not in program.outside]
        if len(levels) > 1 and levels[0].var == first and levels[1].walk.counted:
            return names.array(k, "pos", levels[1].number)
    return None
