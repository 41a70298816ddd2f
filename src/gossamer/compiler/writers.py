"""The C that writes entries: sorted keys into the arrays of a stack of levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.conversion import named


class Part(NamedTuple):
    """A level of a stack that is written: what it says of itself, the type of its arrays, its integers.

    Dense levels at the end are ``whole``: what they store below a position, those above see as one entry. ``ordered``
    levels have their positions in the order of the entries.
    """

    at: str
    write: str
    counts: str
    merges: bool
    whole: bool
    ordered: bool
    arrays: tuple[tuple[str, str], ...]  # name and C type, those too that are only needed while writing
    numbers: tuple[str, ...] = ()


def fibre(parts: Sequence[Part]) -> int:
    """The last level that is not one of the dense ones at the end (-1: all are)."""
    last = len(parts) - 1
    while last >= 0 and parts[last].whole:
        last -= 1
    return last


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
        lines.append(f"  long p{m} = {-_counts_on(parts, m)}, rank{m} = 0;")
    lines += ["  KEY last = n ? ~key[0] : 0;", "  for (long k = 0; k < n; ++k) {", "    const KEY now = key[k];"]
    for m, part in enumerate(parts[:last]):
        parent = f"p{m - 1}" if m else "0"
        bits = f"now >> s{m}" if m == 0 else f"now >> s{m} & (((KEY)1 << (s{m - 1} - s{m})) - 1)"
        names = {"p": parent, "i": f"i{m}", "at": f"p{m}", "size": f"n{m}", "rank": f"rank{m}"}
        names |= {name: f"{name}{m}" for name in (*(a for a, _ in part.arrays), *part.numbers)}
        new, above = _changes(parts, m), _changes(parts, m - 1)
        lines.append(f"    const long i{m} = {bits};")
        if m == depth:
            if part.counts == "entries":
                lines.append(f"    ++out[{parent} * n{m} + i{m}];")
            else:
                lines.append(f"    out[{parent}] += {new};")
            continue
        if _counts_on(parts, m):
            lines.append(f"    p{m} += {new};")
        else:
            if "rank" in part.at:
                first = f"{above} || k == 0" if m else "k == 0"
                lines.append(f"    rank{m} = {first} ? 0 : rank{m} + ({new});")
            lines.append(f"    p{m} = {named(part.at, names)};")
        if store and part.write:
            lines.append(f"    {named(part.write, names)};")
    if store:
        lines.append(f"    if (out) out[k] = p{len(parts) - 1};")
    lines += ["    last = now;", "  }", "}", ""]
    return "\n".join(lines)


def _counts_on(parts: Sequence[Part], m: int) -> bool:
    """Is the position just the next one, so that it needs no array? So it is where all parents come in order."""
    return parts[m].at == "pos[p] + rank" and all(part.ordered for part in parts[:m])


def _changes(parts: Sequence[Part], m: int) -> str:
    """Has an entry another position at level m than the last one? Below a level that merges none, each has."""
    if m < 0:
        return "0"
    seen = m if all(part.merges for part in parts[: m + 1]) else max(fibre(parts), m)
    return f"(now >> s{seen}) != (last >> s{seen})"
