"""Sums in blocks: one that may be long is a sum of short ones, so that its error stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gossamer.compiler.loops.nest import For

if TYPE_CHECKING:
    from gossamer.compiler.emit.c import Writer

BLOCK = 4096  # turns of a loop that are summed together
WIDE = 4 * BLOCK  # the same where lanes are four times as many


def blocks(w: Writer, s: For, write: Callable[[], None], block: int = BLOCK) -> None:
    """Write a sum; ``write`` writes the turns from ``q`` to ``q_stop``, where q is the variable of the loop."""
    q = w.name(s.var)
    begin, end = ("lo", "hi") if s.role == "parts" else (w.expr(s.begin), w.expr(s.end))  # of a chunk, or all
    if w.nest.long:
        w.put(f"for (long {q} = {begin}, {q}_end = {end}; {q} < {q}_end;) {{")
        w.put(f"  const long {q}_stop = {q}_end - {q} > {block} ? {q} + {block} : {q}_end;")
    else:
        w.put(f"{{ long {q} = {begin}; const long {q}_stop = {end};")
    w.depth += 1
    write()
    w.depth -= 1
    w.put("}")


def blocks_before(w: Writer, s: For, write: Callable[[], None]) -> None:
    """Write a sum that may be long, but seldom is: blocks only where there is more than one, then the rest."""
    q = w.name(s.var)
    begin = "" if s.var in w.carried else f"long {q} = {w.expr(s.begin)}; "
    if not w.nest.long:
        w.put(f"{{ {begin}const long {q}_stop = {w.expr(s.end)};")
    else:
        w.put(f"{{ {begin}const long {q}_end = {w.expr(s.end)};")
        w.put(f"while (__builtin_expect({q}_end - {q} > {BLOCK}, 0)) {{")
        w.depth += 1
        w.put(f"const long {q}_stop = {q} + {BLOCK};")
        write()
        w.depth -= 1
        w.put("}")
        w.put(f"const long {q}_stop = {q}_end;")
    w.depth += 1
    write()
    w.depth -= 1
    w.put("}")
