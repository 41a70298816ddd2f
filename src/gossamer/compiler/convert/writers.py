"""The C that writes entries: sorted keys into the arrays of a stack of levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.convert.conversion import named


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


def lone(parts: Sequence[Part]) -> bool:
    """Has each entry a fibre of its own?"""
    return fibre(parts) == len(parts) - 1


def writer(parts: Sequence[Part], key: str, index: str) -> tuple[str, tuple[str, ...]]:
    """Return the C that stores sorted keys in a stack of levels, and the integers that it takes.

    ``count{n}`` counts for level n, given the arrays of those above; ``store`` writes all arrays, and the place of each
    entry where ``place`` is given.
    """
    sizes = integers(parts)
    out = [f"typedef unsigned {key} KEY; typedef {index} INDEX;"]
    for n, part in enumerate(parts):
        if part.counts:
            out.append(_pass(parts, n, sizes))
    out.append(_pass(parts, len(parts), sizes))
    return "\n".join(out), tuple(sizes)


def integers(parts: Sequence[Part]) -> list[str]:
    """Return the integers that a writer takes: where each level's bits begin, its size, its own."""
    sizes = [f"s{n}" for n in range(len(parts))] + [f"n{n}" for n in range(len(parts))]
    return sizes + [f"{name}{n}" for n, part in enumerate(parts) for name in part.numbers]


def _pass(parts: Sequence[Part], depth: int, sizes: Sequence[str]) -> str:
    """One pass over the keys: count for level ``depth``, or store if there is none."""
    store = depth == len(parts)
    head = "store" if store else f"count{depth}"
    coords = [f"now >> s{m} & (((KEY)1 << (s{m - 1} - s{m})) - 1)" if m else "now >> s0" for m in range(len(parts))]
    lines = [
        f"void {head}(void *const *a, const long *z, long n, const KEY *restrict key, INDEX *restrict out) {{",
        "  (void)a, (void)z;",
        *(f"  {line}" for line in declared(parts, depth)),
        *(f"  const long {name} = z[{k}];" for k, name in enumerate(sizes)),
        "  KEY last = n ? ~key[0] : 0;",
        "  for (long k = 0; k < n; ++k) {",
        "    const KEY now = key[k];",
        *(f"    {line}" for line in entry(parts, depth, coords)),
        f"    if (out) out[k] = p{len(parts) - 1};" if store else "",
        "    last = now;",
        "  }",
        "}",
        "",
    ]
    return "\n".join(lines)


def declared(parts: Sequence[Part], depth: int) -> list[str]:
    """Return the declarations of what :func:`entry` names."""
    arrays = [(f"{name}{m}", ctype, m) for m, part in enumerate(parts) for name, ctype in part.arrays]
    lines = [f"{ctype} *restrict {name} = a[{k}];" for k, (name, ctype, m) in enumerate(arrays) if m < depth]
    return lines + [f"long p{m} = {-_counts_on(parts, m)}, rank{m} = 0;" for m in range(min(depth + 1, len(parts)))]


def entry(parts: Sequence[Part], depth: int, coords: Sequence[str], own: Sequence[str] = ()) -> list[str]:
    """Return what is done with an entry of these coordinates: counted for level ``depth``, or stored if there is none.

    ``now`` and ``last`` are the keys of this entry and the last. Entries come in order; where those of the fibre don't,
    its ``own`` lines count them or find their position.
    """
    store, lines = depth == len(parts), []
    for m, part in enumerate(parts[: min(depth + 1, len(parts))]):
        parent = f"p{m - 1}" if m else "0"
        names = {"p": parent, "i": f"i{m}", "at": f"p{m}", "size": f"n{m}", "rank": f"rank{m}"}
        names |= {name: f"{name}{m}" for name in (*(a for a, _ in part.arrays), *part.numbers)}
        new, above = _changes(parts, m), _changes(parts, m - 1)
        lines.append(f"const long i{m} = {coords[m]};")
        if own and m == fibre(parts):
            lines += own
            continue
        if m == depth:
            lines.append(f"++out[{parent} * n{m} + i{m}];" if part.counts == "entries" else f"out[{parent}] += {new};")
            continue
        if _counts_on(parts, m):
            lines.append(f"p{m} += {new};")
        else:
            if "rank" in part.at:
                first = f"{above} || k == 0" if m else "k == 0"
                lines.append(f"rank{m} = {first} ? 0 : rank{m} + ({new});")
            lines.append(f"p{m} = {named(part.at, names)};")
        if store and part.write:
            once = f"if ({new}) " if "^=" in part.write else ""  # else it may be written again for each entry
            lines.append(f"{once}{named(part.write, names)};")
    return lines


def _counts_on(parts: Sequence[Part], m: int) -> bool:
    """Is the position just the next one, so that it needs no array? So it is where all parents come in order."""
    return starts(parts[m]) and all(part.ordered for part in parts[:m])


def starts(part: Part) -> bool:
    """Does ``pos`` say where the positions of each parent start? Then separately counted ranks continue from there."""
    return part.at == "pos[p] + rank" and "rank" not in part.write


def _changes(parts: Sequence[Part], m: int) -> str:
    """Has an entry another position at level m than the last one? Below a level that merges none, each has."""
    if m < 0:
        return "0"
    seen = m if all(part.merges for part in parts[: m + 1]) else max(fibre(parts), m)
    if seen == len(parts) - 1:
        return "1"  # no entry is there twice
    return f"(now >> s{seen}) != (last >> s{seen})"
