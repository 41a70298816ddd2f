"""Sums in vectors, where a C compiler would add one number after the other: it may not change the order of a sum.

A sum along a contiguous dimension has vectors of partial sums. A sparse loop around such a sum takes four turns at a
time, so that their lanes are added up together; where the number of turns is known, what the turns share is read once
and stays in registers (:func:`_held`). Sums along a sparse level are in ``emit.gathers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gossamer.compiler.emit import blocks, gathers
from gossamer.compiler.emit.lanes import BYTES, Lanes, NotLinear
from gossamer.compiler.loops.names import ACC
from gossamer.compiler.loops.nest import (
    Acc,
    Bin,
    Expr,
    For,
    Into,
    Let,
    Load,
    Num,
    Store,
    Var,
    add,
    names_in,
    substituted,
)

if TYPE_CHECKING:
    from gossamer.compiler.emit.c import Writer

MOST = 8  # vectors of a row that stay in registers


def write(w: Writer, s: For) -> bool:
    """Write a loop that sums; if it is not of these kinds, write nothing and say so."""
    if s.role not in ("", "parts") or not s.body:
        return False
    *lets, last = s.body
    if s.role and (lets or s.begin != Num(0)):
        return False
    if isinstance(last, Into) and last.sign == "+=" and all(isinstance(x, Let) for x in lets):
        return gathers.write(w, s, last) if lets else _contiguous(w, s, last)
    found = None if s.role else _dots(s)
    return found is not None and (_held(w, s, found) or _four(w, s, found))


def _contiguous(w: Writer, s: For, last: Into) -> bool:
    lanes = 64 // BYTES[w.nest.value]
    w.lanes = Lanes(s.var, lanes, 4)
    try:
        if not w.varies(last.value):
            return False
        values = [w.vector(last.value, u) for u in range(4)]
    except NotLinear:
        return False
    finally:
        w.lanes = None
    v, q, name = f"v{lanes}", w.name(s.var), w.name(last.name)

    def write() -> None:
        w.put(f"{v} {', '.join(f'{name}_{u} = {{0}}' for u in range(4))};")
        w.put(f"for (; {q} + {4 * lanes} <= {q}_stop; {q} += {4 * lanes}) {{")
        for u in range(4):
            w.put(f"  {name}_{u} += {values[u]};")
        w.put("}")
        w.put(f"for (; {q} + {lanes} <= {q}_stop; {q} += {lanes}) {name}_0 += {values[0]};")
        w.put(f"{name} += {v}_sum(({name}_0 + {name}_1) + ({name}_2 + {name}_3));")
        w.put(f"for (; {q} < {q}_stop; ++{q}) {name} += {w.expr(last.value)};")

    blocks.blocks(w, s, write, blocks.WIDE)
    return True


class _Dots(NamedTuple):
    """A sparse loop whose turns are sums along a contiguous dimension."""

    names: dict[str, Expr]  # what is named before the sum
    inner: For
    value: Expr  # what is summed
    store: Store

    def turn(self, var: str, x: int) -> dict[str, Expr]:
        """The names, x turns later."""
        return {**self.names, var: add(Var(var), Num(x))}

    def four(self, w: Writer, var: str) -> list[str]:
        """The statements that store the sums of four turns, ``acc_0`` to ``acc_3``: side by side, if that is so."""
        total = f"v{64 // BYTES[w.nest.value]}_sums(acc_0, acc_1, acc_2, acc_3)"
        w.lanes = Lanes(var, 4, 1, held={ACC})
        try:
            index, value = (substituted(e, self.names) for e in (self.store.index, self.store.value))
            if w.step(index) != 1:
                raise NotLinear
            text = w.vector(value, 0)
            place = f"*(v4 *)&{w.name.array(self.store.array)}[{w.expr(index)}]"
            return [f"const v4 acc_ = {total};", f"{place} {self.store.sign} {text.replace('out_acc_0', 'acc_')};"]
        except NotLinear:
            stored = [self.stored(w, self.turn(var, x), Load("acc_", Num(x))) for x in range(4)]
            return [f"const v4 acc_ = {total};", *stored]
        finally:
            w.lanes = None

    def stored(self, w: Writer, names: dict[str, Expr], total: Expr) -> str:
        """The statement that stores a sum."""
        value = substituted(self.store.value, {**names, ACC: total})
        place = w.expr(substituted(self.store.index, names))
        return f"{w.name.array(self.store.array)}[{place}] {self.store.sign} {w.expr(value)};"


def _dots(s: For) -> _Dots | None:
    if len(s.body) < 3:
        return None
    *lets, acc, inner, store = s.body
    if not isinstance(inner, For) or not isinstance(store, Store) or not isinstance(acc, Acc) or acc.start:
        return None
    if not all(isinstance(x, Let) for x in lets) or len(inner.body) != 1 or inner.begin != Num(0):
        return None
    into = inner.body[0]
    if not isinstance(into, Into) or into.sign != "+=" or store.sign not in ("=", "+="):
        return None
    return _Dots({x.name: x.value for x in lets if isinstance(x, Let)}, inner, into.value, store)


def _held(w: Writer, s: For, d: _Dots) -> bool:
    """Write it with what does not change from turn to turn in registers: the number of vectors is known."""
    lanes = 64 // BYTES[w.nest.value]
    turns = int(d.inner.end.value) if isinstance(d.inner.end, Num) else 0
    count = turns // lanes
    if turns % lanes or not 0 < count <= MOST:
        return False
    q, k, v = w.name(s.var), w.name(d.inner.var), f"v{lanes}"
    loads = [x for x in _loads(d.value) if s.var not in names_in(substituted(x, d.names))]
    w.lanes = Lanes(d.inner.var, lanes, count)
    try:
        loads = [x for x in loads if w.step(x.index) == 1]
        rows = [f"row{m}_{u} = {w.vector(x, u)}" for m, x in enumerate(loads) for u in range(count)]
        w.lanes.held |= {f"row{m}" for m in range(len(loads))}
        value = _replaced(d.value, {x: Var(f"row{m}") for m, x in enumerate(loads)})
        terms = [[w.vector(substituted(value, d.turn(s.var, x)), u) for u in range(count)] for x in range(4)]
    except NotLinear:
        return False
    finally:
        w.lanes = None
    if not loads:
        return False
    w.put(f"{{ long {q} = {w.expr(s.begin)}; const long {q}_stop = {w.expr(s.end)}, {k} = 0;")
    w.put(f"if ({q} < {q}_stop) {{")
    w.depth += 1
    w.put(f"const {v} {', '.join(rows)};")
    w.put(f"for (; {q} + 4 <= {q}_stop; {q} += 4) {{")
    w.put(f"  {v} {', '.join(f'acc_{x} = {{0}}' for x in range(4))};")
    for u in range(count):
        w.put("  " + " ".join(f"acc_{x} += {terms[x][u]};" for x in range(4)))
    for line in d.four(w, s.var):
        w.put(f"  {line}")
    w.put("}")
    w.put(f"for (; {q} < {q}_stop; ++{q}) {{")
    w.put(f"  {v} acc_0 = {{0}}, acc_1 = {{0}};")
    for u in range(count):
        w.put(f"  acc_{u % 2} += {terms[0][u]};")
    w.put(f"  const real out_acc = {v}_sum(acc_0 + acc_1);")
    w.put(f"  {d.stored(w, d.names, Var(ACC))}")
    w.put("}")
    w.depth -= 1
    w.put("} }")
    return True


def _four(w: Writer, s: For, d: _Dots) -> bool:
    """Write it four turns at a time, whatever their length."""
    lanes = 64 // BYTES[w.nest.value]
    turn = [d.turn(s.var, x) for x in range(4)]
    w.lanes = Lanes(d.inner.var, lanes, 1)
    try:
        if not w.varies(substituted(d.value, turn[0])):
            return False
        values = [w.vector(substituted(d.value, t), 0) for t in turn]
    except NotLinear:
        return False
    finally:
        w.lanes = None
    k, q, v = w.name(d.inner.var), w.name(s.var), f"v{lanes}"
    w.put(f"{{ long {q} = {w.expr(s.begin)};")
    w.put(f"const long {q}_stop = {w.expr(s.end)}, {k}_stop = {w.expr(d.inner.end)};")
    w.put(f"for (; {q} + 4 <= {q}_stop; {q} += 4) {{")
    w.depth += 1
    w.put(f"{v} {', '.join(f'acc_{x} = {{0}}' for x in range(4))}; long {k} = 0;")
    w.put(f"for (; {k} + {lanes} <= {k}_stop; {k} += {lanes}) {{")
    for x in range(4):
        w.put(f"  acc_{x} += {values[x]};")
    w.put("}")
    w.put(f"for (; {k} < {k}_stop; ++{k}) {{")  # the rest goes into the first lanes
    for x in range(4):
        w.put(f"  acc_{x}[0] += {w.expr(substituted(d.value, turn[x]))};")
    w.put("}")
    for line in d.four(w, s.var):
        w.put(line)
    w.depth -= 1
    w.put("}")
    w.put(f"for (; {q} < {q}_stop; ++{q}) {{")
    w.block(s.body)
    w.put("} }")
    return True


def _loads(e: Expr) -> list[Load]:
    """The values that an expression reads, each once."""
    if isinstance(e, Load):
        return [e]
    return list(dict.fromkeys([*_loads(e.left), *_loads(e.right)])) if isinstance(e, Bin) else []


def _replaced(e: Expr, by: dict[Load, Var]) -> Expr:
    if isinstance(e, Load):
        return by.get(e, e)
    return Bin(e.sign, _replaced(e.left, by), _replaced(e.right, by)) if isinstance(e, Bin) else e
