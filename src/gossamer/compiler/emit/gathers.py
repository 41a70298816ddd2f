"""Sums along a sparse level, whose terms are read at its coordinates.

Values side by side are loaded as vectors, others lane by lane into one. What is left of a row is added one by one if
rows have about the same length, so that the processor guesses how often. If they have not, a wrong guess takes longer
than the sum: the rest is one more vector, with a mask (``Nest.ragged``, where the processor has masks).

A row begins where the one before it ended. So one counter runs through all of them (:func:`carried`), and each row
reads one pointer instead of two: 12 to 18 % less time for rows of 16 to 27 entries (Zen 5).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

from gossamer.compiler.emit.blocks import blocks_before
from gossamer.compiler.emit.lanes import BYTES, Lanes, NotLinear
from gossamer.compiler.loops.nest import Bin, Expr, For, Into, Let, Load, Num, Var, add, names_in, substituted

if TYPE_CHECKING:
    from gossamer.compiler.emit.c import Writer

# Loads under a mask, of values side by side or at coordinates; other lanes are 0. ``v_kept`` clears the other lanes.
MASKS = """\
#if defined(__AVX512VL__) && defined(__GNUC__) && !defined(__clang__)
#define MASKS 1
typedef {real} plain_t __attribute__((vector_size(32)));
typedef int at_t __attribute__((vector_size({index})));
typedef {whole} lanes_t __attribute__((vector_size(32)));
static inline v{n} v_loaded(const real *p, long m) {{
  return (v{n})__builtin_ia32_loadup{s}256_mask(p, (plain_t){{0}}, m);
}}
static inline v{n} v_gathered(const real *p, const int *at, long m) {{
  const at_t places = __builtin_ia32_loaddqusi{bits}_mask(at, (at_t){{0}}, m);
  return (v{n})__builtin_ia32_gather3siv{n}{kind}((plain_t){{0}}, p, places, m, {bytes});
}}
static inline v{n} v_kept(v{n} v, long count) {{
  const lanes_t lane = {{{lanes}}};
  return (v{n})((lanes_t)v & (lane < ({whole})count));
}}
#endif
"""


def masks(value: str) -> str:
    """Return the C of masked loads of a type of values; nothing for integers."""
    if value not in ("float", "double"):
        return ""
    n, letter = 32 // BYTES[value], {"float": "s", "double": "d"}[value]
    return MASKS.format(
        real=value, n=n, index=4 * n, bits=32 * n, bytes=BYTES[value], lanes=", ".join(map(str, range(n))),
        whole="int" if value == "float" else "long", s=letter, kind=f"{letter}f",
    )  # fmt: skip


def write(w: Writer, s: For, last: Into) -> bool:
    """Write a loop along a sparse level that adds to a sum; if it is not of this kind, write nothing and say so."""
    found = terms(w, s)
    if found is None:
        return False
    names = _Names(w.name(s.var), w.name(last.name), 32 // BYTES[w.nest.value])
    value = _value(s)
    rest = _rest(w, s, value) if w.nest.ragged else None

    def turns() -> None:
        if rest is not None:
            w.lines.append("#if MASKS")
            _masked(w, names, found, rest)
            w.lines.append("#else")
        _one_by_one(w, names, found, w.expr(value))
        if rest is not None:
            w.lines.append("#endif")

    blocks_before(w, s, turns)
    return True


def carried(w: Writer, s: For) -> For | None:
    """Return the sum in a loop whose rows begin where the ones before them ended: it needs one counter for all rows."""
    for inner in s.body:
        if not isinstance(inner, For) or inner.role or not isinstance(inner.begin, Load):
            continue
        pos = inner.begin.array
        if (inner.begin, inner.end) != (Load(pos, Var(s.var)), Load(pos, add(Var(s.var), Num(1)))):
            continue
        *lets, last = inner.body
        summed = isinstance(last, Into) and last.sign == "+=" and lets and all(isinstance(x, Let) for x in lets)
        if summed and w.lanes is None and terms(w, inner) is not None:
            return inner
    return None


class _Names(NamedTuple):
    """Names in C: of the loop's variable and of the sum, and the lanes of a vector."""

    q: str
    acc: str
    lanes: int


def _value(s: For) -> Expr:
    """What is added at each turn, without names."""
    *lets, last = s.body
    assert isinstance(last, Into)
    return substituted(last.value, {x.name: x.value for x in lets if isinstance(x, Let)})


def terms(w: Writer, s: For) -> list[str] | None:
    """Return the terms of two vectors of turns; None if they can't be written as vectors."""
    w.lanes = Lanes(s.var, 32 // BYTES[w.nest.value], 2)
    try:
        return [_gather(w, _value(s), u) for u in range(2)]
    except NotLinear:
        return None
    finally:
        w.lanes = None


def _vectors(w: Writer, n: _Names, terms: list[str]) -> None:
    """Write the sum of all turns that fill a vector, as ``acc_0 + acc_1``."""
    w.put(f"v{n.lanes} {n.acc}_0 = {{0}}, {n.acc}_1 = {{0}};")
    w.put(f"for (; {n.q} + {2 * n.lanes} <= {n.q}_stop; {n.q} += {2 * n.lanes})")
    w.put(f"  {{ {n.acc}_0 += {terms[0]}; {n.acc}_1 += {terms[1]}; }}")
    w.put(f"if ({n.q} + {n.lanes} <= {n.q}_stop) {{ {n.acc}_0 += {terms[0]}; {n.q} += {n.lanes}; }}")


def _masked(w: Writer, n: _Names, terms: list[str], rest: str) -> None:
    """Write the turns with the last few in a vector of their own."""
    _vectors(w, n, terms)
    w.put(f"if ({n.q} < {n.q}_stop) {{")
    w.put(f"  const long n_ = {n.q}_stop - {n.q}, m_ = (1 << n_) - 1;")
    w.put(f"  {n.acc}_1 += v_kept({rest}, n_), {n.q} = {n.q}_stop;")
    w.put("}")
    w.put(f"{n.acc} += v{n.lanes}_sum({n.acc}_0 + {n.acc}_1);")


def _one_by_one(w: Writer, n: _Names, terms: list[str], value: str) -> None:
    """Write the turns with the last few one by one: short rows have no vectors to add up."""
    w.put(f"real {n.acc}_rest = 0;")
    w.put(f"if ({n.q} + {n.lanes} <= {n.q}_stop) {{")
    w.depth += 1
    _vectors(w, n, terms)
    w.put(f"{n.acc}_rest = v{n.lanes}_sum({n.acc}_0 + {n.acc}_1);")
    w.depth -= 1
    w.put("}")
    w.put("#pragma GCC unroll 1")
    w.put(f"for (; {n.q} < {n.q}_stop; ++{n.q}) {{")
    w.put(f'  __asm__("" : "+r"({n.q}));')  # else gcc gathers lanes here too, and asks each row if it has enough
    w.put(f"  {n.acc}_rest += {value};")
    w.put("}")
    w.put(f"{n.acc} += {n.acc}_rest;")


def _gather(w: Writer, e: Expr, u: int) -> str:
    """A value in the lanes of vector u of a sparse loop."""
    lanes = w.lanes
    assert lanes is not None
    if lanes.var not in names_in(e):
        return w.expr(e)
    if isinstance(e, Load):
        with contextlib.suppress(NotLinear):
            return w.vector(e, u)
        each = [
            w.expr(substituted(e, {lanes.var: add(Var(lanes.var), Num(u * lanes.width + x))}))
            for x in range(lanes.width)
        ]
        return f"(({lanes.type}){{{', '.join(f'LANE({x})' for x in each)}}})"
    if not isinstance(e, Bin) or e.sign not in ("+", "-", "*"):
        raise NotLinear
    return f"({_gather(w, e.left, u)} {e.sign} {_gather(w, e.right, u)})"


def _rest(w: Writer, s: For, value: Expr) -> str | None:
    """Return the value in the lanes that the mask ``m_`` names; None if it can't be loaded so."""
    w.lanes = Lanes(s.var, 32 // BYTES[w.nest.value], 1)
    try:
        return _under_mask(w, value) if w.nest.value in ("float", "double") else None
    except NotLinear:
        return None
    finally:
        w.lanes = None


def _under_mask(w: Writer, e: Expr) -> str:
    lanes = w.lanes
    assert lanes is not None
    if lanes.var not in names_in(e):
        return w.expr(e)
    if isinstance(e, Bin) and e.sign in ("+", "-", "*"):
        return f"({_under_mask(w, e.left)} {e.sign} {_under_mask(w, e.right)})"
    if not isinstance(e, Load):
        raise NotLinear
    at, array = e.index, w.name.array(e.array)
    if isinstance(at, Load) and lanes.var in names_in(at):
        if w.step(at.index) != 1 or dict(w.nest.arrays)[at.array] != "int":
            raise NotLinear
        return f"v_gathered({array}, &{w.name.array(at.array)}[{w.expr(at.index)}], m_)"
    if w.step(at) != 1:
        raise NotLinear
    return f"v_loaded(&{array}[{w.expr(at)}], m_)"
