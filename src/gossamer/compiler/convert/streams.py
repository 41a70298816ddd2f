"""The C of conversions that need no sort: the levels of the source are walked, and each entry is stored as it comes.

How depends on the order in which the walk comes to the last level that is not dense, the **fibre**:

``"in order"``
    the target's own: entries are stored one after another;
``"apart"``
    entries below one parent come in order, with those of others between them (rows to columns): each parent counts
    its own;
``"together"``
    entries below one parent come together, in any order (rows to blocks): its coordinates are collected in bits first.

No keys are made, and every pass is one walk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.convert import writers
from gossamer.compiler.convert.conversion import Cut, named
from gossamer.compiler.convert.readers import Lines, Walked, coordinates, walk
from gossamer.compiler.convert.writers import Part

_SOON = 32  # entries ahead for which memory is asked
#: The coordinates whose bits are set, in ascending order; the bits are cleared. Returns how many they were.
_DRAIN = """\
static long drain(unsigned long *bits, long size, INDEX *found) {
  long n = 0;
  for (long w = 0; w * 64 < size; ++w) {
    for (unsigned long b = bits[w]; b; b &= b - 1) found[n++] = w * 64 + __builtin_ctzl(b);
    bits[w] = 0;
  }
  return n;
}
"""


def stream(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], mode: str, key: str, value: str
) -> tuple[str, tuple[str, ...]]:
    """Return the C that stores the entries of one stack of levels in another, and the integers that it takes.

    ``count{n}`` counts for level n, and ``count`` all entries; ``store`` writes the arrays. It brings the values along
    if their type is named, and else says where each entry was and is: ``where`` and ``place``, or only ``where`` for
    each place.
    """
    depths = [n for n, part in enumerate(parts) if part.counts]
    out = [
        f"typedef unsigned {key} KEY; typedef int INDEX; typedef {value or 'int'} VALUE;",
        _DRAIN,
    ]
    for depth in (-1, *depths, len(parts)):
        text, sizes = _pass(source, parts, target, depth, mode, value)
        out.append(text)
    return "\n".join(out), sizes


def _pass(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], depth: int, mode: str, value: str
) -> tuple[str, tuple[str, ...]]:
    """One walk: count all (-1), count for level ``depth``, or store if there is none."""
    w, store, last = Lines(), depth == len(parts), f"p{len(parts) - 1}"
    at = walk(w, source, "x")
    own = _Own([], [])
    if depth >= 0:
        own = _apart(parts, store) if mode == "apart" else _together(parts, store) if mode == "together" else own
        lines = writers.entry(parts, depth, [cut.expression() for cut in target], own.lines)
        if any("last" in line for line in lines):
            fields = [f"(KEY)({cut.expression()}) << s{m}" for m, cut in enumerate(target)]
            lines = [f"const KEY now = {' | '.join(fields)};", *lines, "last = now;"]
        if store and mode == "apart":
            lines = [*_ahead(source, parts, target, value), *lines]
        for line in lines:
            w.put(line)
    if store and value:
        w.put(f"to[{last}] = from[{at}];")
    elif store:
        w.put(f"if (where) where[place ? k : {last}] = {at};")
        w.put(f"if (place) place[k] = {last};")
    w.put("++k;")
    w.close()
    if depth >= writers.fibre(parts):
        w.lines += own.after
    sizes = [*w.sizes, "places", *writers.integers(parts)]
    name = "store" if store else "count" if depth < 0 else f"count{depth}"
    head = [
        f"long {name}(void *const *b, const long *z, void *const *a, INDEX *restrict out, INDEX *restrict ranks,",
        "  INDEX *restrict seen, unsigned long *restrict bits, INDEX *restrict found,",
        "  const VALUE *restrict from, VALUE *restrict to, INDEX *restrict where, INDEX *restrict place) {",
        *(f"  {line} = b[{n}];" for n, line in enumerate(w.arrays)),
        *(f"  const long {name} = z[{n}];" for n, name in enumerate(sizes)),
        *(f"  {line}" for line in (writers.declared(parts, depth) if depth >= 0 else ())),
        "  long k = 0, held = -1, next = 0;",
        "  KEY last = ~(KEY)0;",  # no key has its highest bit
    ]
    return "\n".join([*head, *w.lines, "  return k;", "}", ""]), tuple(sizes)


class _Own(NamedTuple):
    """What a mode does at the fibre: with an entry, and at the end."""

    lines: list[str]
    after: list[str]


def _names(parts: Sequence[Part]) -> tuple[int, str, dict[str, str]]:
    """The fibre, the position above it, and what its expressions name."""
    m = writers.fibre(parts)
    parent = f"p{m - 1}" if m else "0"
    names = {"p": parent, "i": f"i{m}", "at": f"p{m}", "size": f"n{m}", "rank": f"rank{m}"}
    return m, parent, names | {a: f"{a}{m}" for a in (*(a for a, _ in parts[m].arrays), *parts[m].numbers)}


def _apart(parts: Sequence[Part], store: bool) -> _Own:
    """Each parent has its own rank; where positions are shared, also what it has seen last."""
    m, parent, names = _names(parts)
    part, new = parts[m], "1" if writers.lone(parts) else "new"
    lines = []
    if new == "new":
        lines.append(f"const int new = seen[{parent}] != i{m} + 1; seen[{parent}] = i{m} + 1;")
    if not store:
        return _Own([*lines, f"out[{parent}] += {new};"], [])
    count = f"ranks[{parent}]++" if new == "1" else f"(ranks[{parent}] += new) - 1"
    if writers.starts(part):
        lines.append(f"p{m} = {count};")
    else:
        lines += [f"rank{m} = {count};", f"p{m} = {named(part.at, names)};"]
    return _Own([*lines, f"{named(part.write, names)};"] if part.write else lines, [])


def _ahead(source: Walked, parts: Sequence[Part], target: Sequence[Cut], value: str) -> list[str]:
    """Ask for the memory of an entry that comes soon: each goes to another parent, and so to a distant place.

    Its coordinates above are taken to be those of this one. Where they are not, the guess is wrong but harmless: it
    stays within the arrays.
    """
    n, m = len(source.levels) - 1, writers.fibre(parts)
    inner = source.levels[n].walk
    if inner.coord != "crd[at]" or inner.real or source.guards or source.order[-1] != n or not writers.starts(parts[m]):
        return []
    lines = [f"const unsigned long c_{n} = crd_{n}[at_{n} + {_SOON}];", *coordinates(source, "x")]
    for k, part in enumerate(parts[:m]):
        names = {"p": f"p{k - 1}" if k else "0", "i": f"i{k}", "size": f"n{k}"}
        names |= {a: f"{a}{k}" for a in (*(a for a, _ in part.arrays), *part.numbers)}
        lines += [f"const long i{k} = {target[k].expression()};", f"const long p{k} = {named(part.at, names)};"]
    lines += [f"const long there = ranks[{f'p{m - 1}' if m else '0'}];", f"__builtin_prefetch(&crd{m}[there], 1);"]
    lines += ["__builtin_prefetch(&to[there], 1);"] if value and writers.lone(parts) else []
    return [f"if (at_{n} + {_SOON} < places) {{", *(f"  {line}" for line in lines), "}"]


def _together(parts: Sequence[Part], store: bool) -> _Own:
    """The coordinates of a parent are collected when entries are counted, and stored when it comes again."""
    m, parent, names = _names(parts)
    if not store:
        drain = (
            f"if (held >= 0) {{ const long many = drain(bits, n{m}, found + next); out[held] = many, next += many; }}"
        )
        lines = [f"if ({parent} != held) {{ {drain} held = {parent}; }}", f"bits[i{m} / 64] |= 1UL << i{m} % 64;"]
        return _Own(lines, [f"  {drain}"])
    part, names = parts[m], names | {"i": "found[next]"}
    all_of_it = (
        f"for (rank{m} = 0; rank{m} < out[{parent}]; ++rank{m}, ++next) {{ p{m} = {named(part.at, names)}; "
        f"{named(part.write, names)}; seen[found[next]] = p{m}; }}"
    )
    return _Own([f"if ({parent} != held) {{ held = {parent}; {all_of_it} }}", f"p{m} = seen[i{m}];"], [])
