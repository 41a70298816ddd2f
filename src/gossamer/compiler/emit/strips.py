"""Loops in strips: sums of several columns side by side, in vectors.

The loops inside are repeated for each size of strip. Where all columns are one strip there is a version of the whole
nest without the others: rows are short, and asking each of them for every size takes longer than its entries. A strip
of one vector has two sums, for even and odd turns, so that one addition need not wait for the one before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.compiler.emit.blocks import BLOCK
from gossamer.compiler.emit.lanes import BYTES, Lanes, NotLinear
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import For, If, Into, Let, Num, Stmt, Var, While, add, substituted

if TYPE_CHECKING:
    from gossamer.compiler.emit.c import Writer

Strip = tuple[int, int]  # vectors in a strip, and bytes of one
STRIPS: tuple[Strip, ...] = ((8, 64), (4, 64), (2, 64), (1, 64), (1, 32), (1, 16))  # then single columns


def write(w: Writer, s: For) -> bool:
    """Write a loop in strips, around strips, or inside one; if it is none of these, write nothing and say so."""
    if w.lanes is not None:
        return _blocks(w, s) if w.nest.long and adds(s.body) else _paired(w, s)
    if s.role == "strip":
        return _one(w, s, *w.only) if w.only is not None else _strips(w, s)
    if s.role == "units" and w.only is None and (strip := strip_in(s.body)) is not None:
        _versions(w, s, strip)
        return True
    return False


def strip_in(body: list[Stmt]) -> For | None:
    """Return the loop in strips that is somewhere in here; None if there is none."""
    for s in body:
        if isinstance(s, For) and s.role == "strip":
            return s
        for inner in (s.body, s.other) if isinstance(s, If) else (s.body,) if isinstance(s, (For, While)) else ():
            if (found := strip_in(inner)) is not None:
                return found
    return None


def adds(body: list[Stmt]) -> bool:
    """Is something added to a sum here, outside the loops in there?"""
    return any(
        (isinstance(s, Into) and s.sign == "+=") or (isinstance(s, If) and (adds(s.body) or adds(s.other)))
        for s in body
    )


def _versions(w: Writer, s: For, strip: For) -> None:
    """Write a loop for each number of columns that is one strip, and for all others."""
    mark, size = len(w.lines), BYTES[w.nest.value]
    try:
        for count, width in STRIPS[2:]:  # of more columns a row has enough to do
            w.only = count, width
            w.put(f"if ({w.expr(strip.end)} == {count * width // size}) {{")
            w.depth += 1
            w.turns(s)
            w.depth -= 1
            w.put("} else")
    except NotLinear:
        del w.lines[mark:]
        w.depth -= 1
    w.only = None
    w.turns(s)


def _one(w: Writer, s: For, count: int, width: int) -> bool:
    """Write a loop that is one strip."""
    w.lanes = Lanes(s.var, width // BYTES[w.nest.value], count)
    try:
        w.put(f"{{ const long {w.name(s.var)} = 0;")
        w.block(s.body)
        w.put("}")
    finally:
        w.lanes = None
    return True


def _strips(w: Writer, s: For) -> bool:
    """Write a loop for each size of strip; if an index does not allow it, write nothing and say so."""
    mark, size, var = len(w.lines), BYTES[w.nest.value], w.name(s.var)
    w.put(f"{{ long {var} = 0; const long {var}_stop = {w.expr(s.end)};")
    depth = w.depth
    try:
        for count, width in STRIPS:
            lanes = width // size
            w.lanes = Lanes(s.var, lanes, count)
            w.put(f"for (; {var} + {lanes * count} <= {var}_stop; {var} += {lanes * count}) {{")
            w.block(s.body)
            w.put("}")
    except NotLinear:
        del w.lines[mark:]
        w.depth = depth
        return False
    finally:
        w.lanes = None
    w.put(f"for (; {var} < {var}_stop; ++{var}) {{")
    w.block(s.body)
    w.put("} }")
    return True


def _paired(w: Writer, s: For) -> bool:
    """Write a sum in one vector as two: of even turns, and of odd ones."""
    found = _pair(w, s)
    if found is None:
        return False
    q = w.name(s.var)
    w.put(f"{{ long {q} = {w.expr(s.begin)}; const long {q}_stop = {w.expr(s.end)};")
    for line in found:
        w.put(f"  {line}")
    w.put("}")
    return True


def _pair(w: Writer, s: For) -> list[str] | None:
    """The lines that add up the turns from ``q`` to ``q_stop``; None if they are not one sum in one vector."""
    lanes, (*lets, last) = w.lanes, s.body
    if lanes is None or lanes.count > 1 or not isinstance(last, Into) or last.sign != "+=":
        return None
    if s.role or not all(isinstance(x, Let) for x in lets):
        return None
    known = {x.name: x.value for x in lets if isinstance(x, Let)}
    value = substituted(last.value, known)
    even, odd = (w.vector(substituted(value, {s.var: add(Var(s.var), Num(x))}), 0) for x in (0, 1))
    q, acc = w.name(s.var), f"{w.name(last.name)}_0"
    return [
        f"{lanes.type} {acc}_odd = {{0}};",
        f"for (; {q} + 2 <= {q}_stop; {q} += 2) {{ {acc} += {even}; {acc}_odd += {odd}; }}",
        f"if ({q} < {q}_stop) {{ {acc} += {even}; ++{q}; }}",
        f"{acc} += {acc}_odd;",
    ]


def _blocks(w: Writer, s: For) -> bool:
    """Write a sum in lanes block by block, if it may be long: else its error would grow with its length."""
    if isinstance(s.begin, Num) and isinstance(s.end, Num):
        return False
    q, acc = w.name(s.var), w.name(names.ACC)
    w.put(f"{{ long {q} = {w.expr(s.begin)}; const long {q}_end = {w.expr(s.end)};")
    w.put(f"while (__builtin_expect({q}_end - {q} > {BLOCK}, 0)) {{")
    w.put(f"  const long {q}_stop = {q} + {BLOCK};")
    _turns(w, s)
    w.put(f"  {acc}_turns += {BLOCK};")
    end_block(w)
    w.put("}")
    w.put(f"const long {q}_stop = {q}_end;")
    w.put(f"{acc}_turns += {q}_stop - {q};")
    _turns(w, s)
    end_block(w)
    w.put("}")
    return True


def _turns(w: Writer, s: For) -> None:
    """Write the turns from ``q`` to ``q_stop``."""
    if (found := _pair(w, s)) is not None:
        w.put(f"{{ {' '.join(found)} }}")
        return
    q = w.name(s.var)
    w.put(f"for (; {q} < {q}_stop; ++{q}) {{")
    w.block(s.body)
    w.put("}")


def end_block(w: Writer) -> None:
    """Put the sums in lanes aside once they are of many turns."""
    assert w.lanes is not None
    acc = w.name(names.ACC)
    w.put(f"  if (__builtin_expect({acc}_turns >= {BLOCK}, 0)) {{")
    for u in range(w.lanes.count):
        w.put(f"    if ({acc}_blocks) {acc}_{u}_before += {acc}_{u}; else {acc}_{u}_before = {acc}_{u};")
        w.put(f"    {acc}_{u} = ({w.lanes.type}){{0}};")
    w.put(f"    {acc}_blocks = 1, {acc}_turns = 0;")
    w.put("  }")
