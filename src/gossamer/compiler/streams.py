"""The C of conversions that need no sort: the levels of the source are walked, and each entry is stored as it comes.

So it is where the source is in the target's order, or can be walked in it; and where the entries of each parent come in
order, though those of other parents come between them (rows to columns): then each parent counts its own. No keys are
made, and every pass is one walk.
"""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.compiler import writers
from gossamer.compiler.conversion import Cut
from gossamer.compiler.readers import Lines, Walked, walk
from gossamer.compiler.writers import Part


def stream(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], apart: bool, key: str, value: str
) -> tuple[str, tuple[str, ...]]:
    """Return the C that stores the entries of one stack of levels in another, and the integers that it takes.

    ``count{n}`` counts for level n, and ``count`` all entries; ``store`` writes the arrays. It brings the values along
    if their type is named, and else says where each entry was and is: ``where`` and ``place``, or only ``where`` for
    each place. With ``apart`` each parent has its own rank (:func:`gossamer.compiler.writers.entry`).
    """
    depths = [n for n, part in enumerate(parts) if part.counts]
    out = [f"typedef unsigned {key} KEY; typedef int INDEX; typedef {value or 'int'} VALUE;"]
    for depth in (-1, *depths, len(parts)):
        text, sizes = _pass(source, parts, target, depth, apart, value)
        out.append(text)
    return "\n".join(out), sizes


def _pass(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], depth: int, apart: bool, value: str
) -> tuple[str, tuple[str, ...]]:
    """One walk: count all (-1), count for level ``depth``, or store if there is none."""
    w, store = Lines(), depth == len(parts)
    at = walk(w, source, "x")
    if depth >= 0:
        lines = writers.entry(parts, depth, [cut.expression() for cut in target], apart)
        if any("last" in line for line in lines):
            fields = [f"(KEY)({cut.expression()}) << s{m}" for m, cut in enumerate(target)]
            lines = [f"const KEY now = {' | '.join(fields)};", *lines, "last = now;"]
        for line in lines:
            w.put(line)
    if store and value:
        w.put(f"to[p{len(parts) - 1}] = from[{at}];")
    elif store:
        w.put(f"if (where) where[place ? k : p{len(parts) - 1}] = {at};")
        w.put(f"if (place) place[k] = p{len(parts) - 1};")
    w.put("++k;")
    w.close()
    sizes = [*w.sizes, *writers.integers(parts)]
    name = "store" if store else "count" if depth < 0 else f"count{depth}"
    head = [
        f"long {name}(void *const *b, const long *z, void *const *a, INDEX *restrict ranks, INDEX *restrict seen,",
        "  INDEX *restrict out, const VALUE *restrict from, VALUE *restrict to, INDEX *restrict where,",
        "  INDEX *restrict place) {",
        *(f"  {line} = b[{n}];" for n, line in enumerate(w.arrays)),
        *(f"  const long {name} = z[{n}];" for n, name in enumerate(sizes)),
        *(f"  {line}" for line in (writers.declared(parts, depth) if depth >= 0 else ())),
        "  long k = 0;",
        "  KEY last = ~(KEY)0;",  # no key has its highest bit
    ]
    return "\n".join([*head, *w.lines, "  return k;", "}", ""]), tuple(sizes)
