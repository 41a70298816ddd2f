"""Sums along a dense index for several entries of a row at once, with what these entries share in registers.

In ``ij,id,jd->ij`` all entries of a row read the same row of the second operand. The lanes that compute a row load it
once, and then a row of the third operand for each entry, several entries at once. Each lane has a part of each of these
sums. The lanes exchange parts until each has the sums of some entries (:data:`TOTALS`): for eight entries and eight
lanes that takes seven shuffles, where eight separate sums take 24.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gossamer.compiler.gpu.bodies import Row, factors
from gossamer.compiler.loops.nest import For, Load, names_in

if TYPE_CHECKING:
    from gossamer.compiler.gpu.emit import Writer

#: The sum of each entry, from the parts of all lanes: lane n gets that of entry n / (lanes / entries). And the largest
#: number of turns of all rows of a warp: shuffles need all lanes.
TOTALS = """\
__device__ __forceinline__ real totals(real (&part)[{unroll}], int lane) {{
  int by = {lanes} / 2;
  _Pragma("unroll") for (int many = {unroll} / 2; many; many /= 2, by /= 2) {{
    const bool upper = lane & by;
    _Pragma("unroll") for (int u = 0; u < many; ++u) {{
      const real own = upper ? part[u + many] : part[u], other = upper ? part[u] : part[u + many];
      part[u] = own + __shfl_xor_sync(0xffffffffu, other, by);
    }}
  }}
  _Pragma("unroll") for (; by; by /= 2) part[0] += __shfl_xor_sync(0xffffffffu, part[0], by);
  return part[0];
}}
__device__ __forceinline__ idx longest(idx mine) {{
  _Pragma("unroll") for (int by = {lanes}; by < 32; by *= 2) {{
    const idx other = __shfl_xor_sync(0xffffffffu, mine, by);
    mine = other > mine ? other : mine;
  }}
  return mine;
}}
"""


def put_row(w: Writer, s: For, row: Row) -> None:
    """Write a loop over entries, ``unroll`` of them at once; each is a sum along the index that lanes share."""
    q, term, mapping = w.name(s.var), w.name(row.terms.var), w.mapping
    w.put(f"{{ const idx {q}_first = {w.expr(s.begin)}, {q}_end = {w.expr(s.end)};")
    w.depth += 1
    w.put(f"idx {term}[{mapping.lines}];")
    step = mapping.lanes * mapping.wide
    begin = w.expr(row.terms.begin)
    w.put(f"{_each('n', mapping.lines)}{term}[n] = {begin} + lane * {mapping.wide} + n * {step};")
    names = {s.var, *(x.name for x in row.lets)}
    loads = [(f"t{number}_", load) for number, load in enumerate(w.loads(row.into.value))]
    w.batched = {row.terms.var: "n"}
    for name, load in loads:
        if not names_in(load.index) & names:
            _load(w, row, load, name, "")
    last = f"{q}_end" if row.store is None else f"{q}_first + longest({q}_end - {q}_first)"
    w.put(f"for (idx {q}_0 = {q}_first, {q}_last = {last}; {q}_0 < {q}_last; {q}_0 += {mapping.unroll}) {{")
    w.depth += 1
    w.batched |= dict.fromkeys(names, "u")
    w.turns("idx", q, f"{q}_0 + u", mapping.unroll, "")
    there = f"if ({q}[u] < {q}_end) "
    for x in row.lets:
        w.turns("idx", w.name(x.name), w.expr(x.value, True), mapping.unroll, there)
    for name, load in loads:
        if names_in(load.index) & names:
            _load(w, row, load, name, there)
    _sums(w, s, row, there)
    w.batched, w.loaded = {}, {}
    for _ in range(2):
        w.depth -= 1
        w.put("}")


def _each(name: str, number: int) -> str:
    return f'_Pragma("unroll") for (int {name} = 0; {name} < {number}; ++{name}) '


def _lines(w: Writer, row: Row) -> str:
    """The loop over lines of a row; the last may be shorter."""
    inside = "" if w.mapping.whole else f"if ({w.name(row.terms.var)}[n] < {w.expr(row.terms.end)}) "
    return _each("n", w.mapping.lines) + inside


def _load(w: Writer, row: Row, load: Load, name: str, there: str) -> None:
    """Load what a sum reads: lines along the shared index, or single values; ``there``: for each entry of a batch."""
    count, real = w.mapping.unroll, w.types[load.array] == "real"
    array, index = w.name.array(load.array), w.expr(load.index, True)
    kind, value = "real" if real else "Element", f"{array}[{index}]"
    shape, loops, found = (f"[{count}]", _each("u", count) + there, f"{name}[u]") if there else ("", "", name)
    if row.terms.var in names_in(load.index):
        kind = "Sums" if real else "Line"
        value = f"*(const {kind}*)({array} + {index})"
        w.put(f"{kind} {name}{shape}[{w.mapping.lines}];")
        w.put(f"{loops}{_lines(w, row)}{found}[n] = {value};")
        found += "[n].e[e]"
    else:
        w.put(f"{kind} {name}{shape};")
        w.put(f"{loops}{found} = {value};")
    w.loaded[load] = found if real else f"widen({found})"


def _sums(w: Writer, s: For, row: Row, there: str) -> None:
    """Write the sums of a batch: each to its place, or all added to one."""
    parts = factors(row.into.value)
    inner = [f for f in parts if row.terms.var in names_in(f)]
    outer = [f for f in parts if row.terms.var not in names_in(f)]
    each, values = _each("u", w.mapping.unroll), _each("e", w.mapping.wide)
    w.put(f"real part_[{w.mapping.unroll}] = {{}};")
    product = " * ".join(w.expr(f, True) for f in inner) or "1"
    w.put(f"{each}{_lines(w, row)}{values}part_[u] += {product};")
    if row.store is None:
        total = " * ".join(["part_[u]", *(w.expr(f, True) for f in outer)])
        w.put(f"{each}{there}{w.name(row.into.name)} += {total};")
        return
    q, share = w.name(s.var), w.mapping.lanes // w.mapping.unroll
    w.put(f"const real {w.name(row.into.name)} = totals(part_, lane);")
    w.put(f"{{ const idx {q} = {q}_0 + lane / {share};")
    w.depth += 1
    w.batched, w.loaded = {}, {}
    w.put(f"if (lane % {share} == 0 && {q} < {q}_end) {{")
    w.sharing = True
    w.block([*row.lets, row.store])
    w.sharing = False
    w.put("}")
    w.depth -= 1
    w.put("}")
