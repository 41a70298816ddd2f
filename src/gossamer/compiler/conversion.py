"""Conversions as C: read the entries of one stack of levels, sort them by what another counts, write its arrays.

An entry is a **key**: the coordinates of the levels it goes to, side by side in the bits of one integer, the outermost
highest. So it is compared, sorted and taken apart by shifts. Three functions are written, each for its own part of the
work, and any reader goes with any writer:

- :func:`reader` walks the levels of a source (or a dense tensor, or a list of numbers) and writes keys;
- :data:`SORT` orders keys by some of their bits: counted, then put in their place, a digit at a time, stably;
- :func:`writer` goes through sorted keys, counts for each level what :meth:`Level.prepare` asks, and stores.

Nothing here knows tensors or formats. ``ops/restack.py`` fits the pieces together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.program import LevelUse


class Cut(NamedTuple):
    """The part of a dimension that a level counts: ``x / weight % size`` (a size of 0: all that is left).

    Examples
    --------
    >>> Cut(0, 4, 0).expression(), Cut(0, 1, 4).expression()  # blocks of four, and the places in one
    ('x0 / 4', 'x0 % 4')
    """

    dim: int
    weight: int = 1
    size: int = 0

    def expression(self) -> str:
        """Return the coordinate, in C."""
        text = f"x{self.dim}" if self.weight == 1 else f"x{self.dim} / {self.weight}"
        return f"{text} % {self.size}" if self.size else text


class Part(NamedTuple):
    """A level of a stack that is written: what it says of itself, the type of its arrays, its integers."""

    at: str
    write: str
    counts: str
    merges: bool
    arrays: tuple[tuple[str, str], ...]  # name and C type, those too that are only needed while writing
    numbers: tuple[str, ...] = ()


def cuts(parts: Sequence[tuple[int, int]], sizes: Sequence[int]) -> tuple[Cut, ...] | None:
    """Return what each level counts, from its dimension and its weight there; None if they don't cut cleanly.

    Examples
    --------
    >>> cuts(((0, 4), (1, 4), (0, 1), (1, 1)), (3, 5, 4, 4))
    (Cut(dim=0, weight=4, size=0), Cut(dim=1, weight=4, size=0), Cut(dim=0, weight=1, size=4), ...)
    >>> cuts(((0, 3), (0, 1)), (3, 4)) is None  # two places for coordinate 3
    True
    """
    found = []
    for (dim, weight), own in zip(parts, sizes, strict=True):
        if own == 1:  # nothing to count, whatever its weight
            found.append(Cut(dim, 1, 1))
            continue
        others = [(w, size) for (d, w), size in zip(parts, sizes, strict=True) if d == dim and size != 1]
        covered = math.prod(size for w, size in others if w < weight)
        above = [w for w, _ in others if w > weight]
        if weight != covered or [w for w, _ in others].count(weight) > 1:
            return None
        found.append(Cut(dim, weight, min(above) // weight if above else 0))
    return tuple(found)


def unsorted_levels(source: Sequence[Cut], target: Sequence[Cut]) -> int:
    """How many of the target's levels must be sorted by; the others follow, since a stable sort keeps their order.

    Examples
    --------
    >>> rows, columns = [Cut(0), Cut(1)], [Cut(1), Cut(0)]
    >>> unsorted_levels(rows, rows), unsorted_levels(rows, columns)
    (0, 1)
    >>> blocks = [Cut(0, 4), Cut(1, 4), Cut(0, 1, 4), Cut(1, 1, 4)]  # rows inside of a block follow from rows
    >>> unsorted_levels(rows, blocks)
    2
    """
    marks: dict[int, list[int]] = {}
    for cut in (*source, *target):
        marks.setdefault(cut.dim, []).append(cut.weight)
    marks = {d: sorted(set(w)) for d, w in marks.items()}
    if any(high % low for w in marks.values() for low, high in itertools.pairwise(w)):
        return len(target)

    def digits(levels: Sequence[Cut]) -> list[tuple[int, int]]:
        out = []
        for c in levels:
            end = c.weight * c.size if c.size else float("inf")
            out += [(c.dim, w) for w in reversed(marks[c.dim]) if c.weight <= w < end]
        return out

    have = digits(source)
    for m in range(len(target)):
        tail = digits(target[m:])
        if [g for g in have if g in tail] == tail:
            return m
    return len(target)


# -- reading


class Reader:
    """The C of a reader, line by line. Every source comes to coordinates x0, x1, ... of the target's dimensions."""

    def __init__(self, target: Sequence[Cut], key: str, index: str | None) -> None:
        self.target, self.key, self.index = target, key, index
        self.arrays: list[str] = []
        self.sizes = [f"s{n}" for n in range(len(target))]  # where each level's bits begin
        self.lines: list[str] = []
        self.depth = 1

    def put(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, line: str) -> None:
        self.put(f"{line} {{")
        self.depth += 1

    def entry(self, where: str) -> None:
        """Write one entry."""
        fields = [f"(KEY)({cut.expression()}) << s{n}" for n, cut in enumerate(self.target)]
        self.put(f"key[n] = {' | '.join(fields)};")
        if self.index:
            self.put(f"where[n] = {where};")

    def regroup(self, have: int, want: int) -> None:
        """From a row-major number to the dimensions of the target."""
        self.sizes += [f"m{d}" for d in range(1, want)]
        for d in range(want - 1, 0, -1):
            self.put(f"const unsigned long x{d} = number % m{d}; number /= m{d};")
        self.put("const unsigned long x0 = number;")

    def source(self) -> str:
        """Return the C function."""
        while self.depth > 1:
            self.depth -= 1
            self.put("}")
        head = [
            f"typedef unsigned {self.key} KEY; typedef {self.index or 'int'} INDEX;",
            "long read(void *const *a, const long *z, KEY *restrict key, INDEX *restrict where, long *falls) {",
            "  (void)a, (void)where, (void)falls;",
            *(f"  {line} = a[{n}];" for n, line in enumerate(self.arrays)),
            *(f"  const long {name} = z[{n}];" for n, name in enumerate(self.sizes)),
            "  long n = 0;",
        ]
        return "\n".join([*head, *self.lines, "  return n;", "}", ""])


def reader(
    levels: Sequence[LevelUse],
    dims: Sequence[tuple[int, int]],
    guards: frozenset[int],
    target: Sequence[Cut],
    regroup: int,
    key: str,
    index: str | None,
) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads a stack of levels, and the integers that it takes.

    ``dims`` has the dimension of each level and its weight there; ``guards`` are dimensions that padding may leave;
    ``regroup`` is the number of the target's dimensions where they are others, and 0 where they are the same.
    """
    r = Reader(target, key, index)
    p = "0"
    for n, level in enumerate(levels):
        w = level.walk
        r.arrays += [f"const {ctype} *restrict {name}{n}" for name, ctype in level.arrays]
        r.sizes += [f"n{n}", *(f"{name}{n}" for name in level.numbers)]
        names = {name: f"{name}{n}" for name in (*(a for a, _ in level.arrays), *level.numbers)}
        names |= {"p": p, "q": f"q{n}", "at": f"at{n}", "size": f"n{n}"}
        r.open(f"for (long q{n} = {named(w.begin, names)}; q{n} < {named(w.end, names)}; ++q{n})")
        r.put(f"const long at{n} = {named(w.at, names)};")
        if w.real:
            r.put(f"if (!({named(w.real, names)})) {'break' if w.ordered else 'continue'};")
        if w.kept:
            r.put(f"if (!({named(w.kept, names)})) continue;")
        r.put(f"const unsigned long c{n} = {named(w.coord, names)};")
        p = f"at{n}"
    count = max(d for d, _ in dims) + 1
    r.sizes += [f"d{d}" for d in range(count)]
    name = "y" if regroup else "x"
    for d in range(count):
        terms = [f"c{n}" if w == 1 else f"c{n} * {w}" for n, (dim, w) in enumerate(dims) if dim == d]
        r.put(f"const unsigned long {name}{d} = {' + '.join(terms) or '0'};")
        if d in guards:
            r.put(f"if ({name}{d} >= d{d}) continue;")
    if regroup:
        r.put("unsigned long number = y0;")
        for d in range(1, count):
            r.put(f"number = number * d{d} + y{d};")
        r.regroup(count, regroup)
    r.entry(p)
    r.put("++n;")
    return r.source(), tuple(r.sizes)


def number_reader(number: str, dims: int, target: Sequence[Cut], key: str, index: str) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads row-major numbers in any order; ``falls`` is set where one is not above the last."""
    r = Reader(target, key, index)
    r.arrays.append("const long *restrict in")
    r.sizes.append("entries")
    r.put("long last = -1;")
    r.open("for (long k = 0; k < entries; ++k)")
    r.put("*falls |= in[k] <= last; last = in[k];")
    r.put(f"unsigned {number} number = in[k];")
    r.regroup(0, dims)
    r.entry("k")
    r.put("++n;")
    return r.source().replace("const unsigned long x", f"const unsigned {number} x"), tuple(r.sizes)


_BLOCK = 64  # bytes that are looked at together


def dense_reader(
    ctype: str, test: str, per: int, dims: int, target: Sequence[Cut], key: str, index: str
) -> tuple[str, tuple[str, ...]]:
    """Return the C that reads what is not zero in a contiguous tensor: ``test`` asks that of value ``v``.

    ``per`` is how many numbers a value has: two, if it is complex.
    """
    r = Reader(target, key, index)
    r.arrays.append(f"const {ctype} *restrict in")
    r.sizes += [f"d{d}" for d in range(dims)]
    bytes_each = {"float": 4, "double": 8, "int": 4, "long": 8, "short": 2, "char": 1}[ctype.split()[-1]]
    step = _BLOCK // (bytes_each * per)
    r.put("long from = 0;")
    for d in range(dims - 1):
        r.open(f"for (unsigned long x{d} = 0; x{d} < d{d}; ++x{d})")
    last = f"x{dims - 1}"
    r.open(f"for (long at = 0; at < d{dims - 1}; at += {step})")
    r.put(f"const {ctype} *v = in + (from + at) * {per};")
    r.put(f"const long end = at + {step} < d{dims - 1} ? at + {step} : d{dims - 1};")
    r.put(f"if (end - at == {step} && nothing(v)) continue;")
    r.open(f"for (unsigned long {last} = at; {last} < end; ++{last}, v += {per})")
    r.entry(f"from + {last}")
    r.put(f"n += {test};")
    r.depth -= 1
    r.put("}")
    r.depth -= 1
    r.put("}")
    r.put(f"from += d{dims - 1};")
    return _NOTHING + r.source(), tuple(r.sizes)


_NOTHING = """\
typedef unsigned long word __attribute__((aligned(1), may_alias));
static inline int nothing(const void *v) {
  const word *w = v;
  return !(w[0] | w[1] | w[2] | w[3] | w[4] | w[5] | w[6] | w[7]);
}
"""


def count_source(ctype: str, test: str, per: int) -> str:
    """Return the C that counts what is not zero."""
    return (
        f"long count(const {ctype} *v, long values) {{\n"
        f"  long n = 0;\n  for (long k = 0; k < values; ++k, v += {per}) n += {test};\n  return n;\n}}\n"
    )


# -- sorting

#: Keys in ascending order of the bits from ``low`` on, those that are alike as they came. Returns 1 if the result
#: is in the second pair of arrays. Without ``where``, entry k was at k.
SORT = """\
typedef unsigned {key} KEY; typedef {index} INDEX;
long sort(long n, long low, long digits, long bits, KEY *key, INDEX *where, KEY *key2, INDEX *where2, INDEX *counts,
          long numbered) {{
  const long buckets = 1L << bits;
  for (long b = 0; b < digits * buckets; ++b) counts[b] = 0;
  for (long k = 0; k < n; ++k)
    for (long d = 0; d < digits; ++d) ++counts[d * buckets + (key[k] >> (low + d * bits) & (buckets - 1))];
  long second = 0;
  for (long d = 0; d < digits; ++d) {{
    INDEX *const at = counts + d * buckets;
    const long shift = low + d * bits;
    if (n && at[key[0] >> shift & (buckets - 1)] == n && (d + 1 < digits || numbered)) continue;
    long before = 0;
    for (long b = 0; b < buckets; ++b) {{ const long here = at[b]; at[b] = before, before += here; }}
    for (long k = 0; k < n; ++k) {{
      const KEY now = key[k];
      const long to = at[now >> shift & (buckets - 1)]++;
      key2[to] = now, where2[to] = numbered ? where[k] : k;
    }}
    KEY *const k2 = key; key = key2, key2 = k2;
    INDEX *const w2 = where; where = where2, where2 = w2;
    second ^= 1, numbered = 1;
  }}
  return second;
}}
long unique(long n, KEY *key, INDEX *group) {{
  long last = -1;
  for (long k = 0; k < n; ++k) {{
    last += last < 0 || key[k] != key[last];
    key[last] = key[k], group[k] = last;
  }}
  return last + 1;
}}
long repeats(long n, const KEY *key) {{
  for (long k = 1; k < n; ++k) if (key[k] == key[k - 1]) return 1;
  return 0;
}}
"""

MOVE = """\
typedef struct {{ {ctype} part[{per}]; }} VALUE;
void move(long n, const VALUE *restrict from, const {index} *where, VALUE *restrict to, const {other} *place) {{
  if (where && place) for (long k = 0; k < n; ++k) to[place[k]] = from[where[k]];
  else if (where) for (long k = 0; k < n; ++k) to[k] = from[where[k]];
  else if (place) for (long k = 0; k < n; ++k) to[place[k]] = from[k];
  else for (long k = 0; k < n; ++k) to[k] = from[k];
}}
"""


# -- writing


def writer(parts: Sequence[Part], key: str, index: str) -> tuple[str, tuple[str, ...]]:
    """Return the C that stores sorted keys in a stack of levels, and the integers that it takes.

    ``count{n}`` counts for level n, given the arrays of those above; ``store`` writes all arrays, and the place of each
    entry where ``place`` is given.
    """
    sizes = [f"s{n}" for n in range(len(parts))] + [f"n{n}" for n in range(len(parts))]
    sizes += [f"{name}{n}" for n, part in enumerate(parts) for name in part.numbers]
    out = [f"typedef unsigned {key} KEY; typedef {index} INDEX;"]
    for n, part in enumerate(parts):
        if part.counts:
            out.append(_pass(parts, n, sizes))
    out.append(_pass(parts, len(parts), sizes))
    return "\n".join(out), tuple(sizes)


def _pass(parts: Sequence[Part], depth: int, sizes: Sequence[str]) -> str:
    """One pass over the keys: count for level ``depth``, or store if there is none."""
    store = depth == len(parts)
    head = "store" if store else f"count{depth}"
    lines = [
        f"void {head}(void *const *a, const long *z, long n, const KEY *restrict key, INDEX *restrict out) {{",
        "  (void)a, (void)z;",
    ]
    arrays = [(f"{name}{m}", ctype) for m, part in enumerate(parts) for name, ctype in part.arrays]
    level = [m for m, part in enumerate(parts) for _ in part.arrays]
    lines += [f"  {c} *restrict {a} = a[{k}];" for k, (a, c) in enumerate(arrays) if store or level[k] < depth]
    lines += [f"  const long {name} = z[{k}];" for k, name in enumerate(sizes)]
    last = min(depth + 1, len(parts))
    for m in range(last):
        lines.append(f"  long p{m} = 0, rank{m} = 0;")
    lines += ["  KEY last = n ? ~key[0] : 0;", "  for (long k = 0; k < n; ++k) {", "    const KEY now = key[k];"]
    for m, part in enumerate(parts[:last]):
        parent = f"p{m - 1}" if m else "0"
        bits = f"now >> s{m}" if m == 0 else f"now >> s{m} & (((KEY)1 << (s{m - 1} - s{m})) - 1)"
        names = {"p": parent, "i": f"i{m}", "at": f"p{m}", "size": f"n{m}", "rank": f"rank{m}"}
        names |= {name: f"{name}{m}" for name in (*(a for a, _ in part.arrays), *part.numbers)}
        new = "1" if not part.merges else f"(now >> s{m}) != (last >> s{m})"
        above = "0" if m == 0 else f"(now >> s{m - 1}) != (last >> s{m - 1})"
        ranked = "rank" in part.at
        counting = m == depth
        lines.append(f"    const long i{m} = {bits};")
        if counting:
            if part.counts == "entries":
                lines.append(f"    ++out[{parent} * n{m} + i{m}];")
            else:
                lines.append(f"    out[{parent}] += {new};")
            continue
        if ranked:
            first = f"{above} || k == 0" if m else "k == 0"
            lines.append(f"    rank{m} = {first} ? 0 : rank{m} + ({new});")
        lines.append(f"    p{m} = {named(part.at, names)};")
        if store and part.write:
            lines.append(f"    {named(part.write, names)};")
    if store:
        lines.append(f"    if (out) out[k] = p{len(parts) - 1};")
    lines += ["    last = now;", "  }", "}", ""]
    return "\n".join(lines)


def named(text: str, names: dict[str, str]) -> str:
    """Return an expression with other names in it."""
    return re.sub(r"[a-z]\w*", lambda m: names.get(m[0], m[0]), text)
