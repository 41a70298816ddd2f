"""Nests that write entries: sorted keys into the arrays of a stack of levels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.loops import names, walks
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Bin,
    Expr,
    For,
    If,
    Let,
    Load,
    Nest,
    Num,
    Set,
    Stmt,
    Store,
    Var,
    add,
    mul,
)
from gossamer.compiler.loops.uses import routine, used


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


def types(parts: Sequence[Part]) -> dict[str, str]:
    """Return the arrays of levels that are written, by their names in a nest, and their types."""
    return {names.array(1, name, m): ctype for m, part in enumerate(parts) for name, ctype in part.arrays}


def writer(parts: Sequence[Part], key: str, index: str) -> dict[str, Nest]:
    """Return the nests that store sorted keys in a stack of levels.

    ``count{n}`` counts for level n, given the arrays of those above; ``store`` writes all arrays, and the place of each
    entry where ``place`` is given.
    """
    given = {**types(parts), "key": f"unsigned {key}", "out": index, "place": index}
    depths = [n for n, part in enumerate(parts) if part.counts]
    nests = {f"count{n}": routine(f"count for level {n}", _pass(parts, n, key), given) for n in depths}
    return nests | {"store": routine("store", _pass(parts, len(parts), key), given)}


def _pass(parts: Sequence[Part], depth: int, key: str) -> list[Stmt]:
    """One pass over the keys: count for level ``depth``, or store if there is none."""
    shifts, masks = ([Var(names.array(1, name, m)) for m in range(len(parts))] for name in ("shift", "field"))
    coords = [Bin("&", Bin(">>", Var("now"), shift), mask) for shift, mask in zip(shifts, masks, strict=True)]
    turn: list[Stmt] = [Let("now", Load("key", Var("k")), type=f"unsigned {key}"), *entry(parts, depth, coords)]
    if depth == len(parts):
        turn.append(If(Var("place.given"), [Store("place", Var("k"), position(len(parts) - 1))]))
    if "last" in used(turn):
        turn.append(Set("last", Var("now")))
    return [*declared(parts, depth, turn, key), For("k", ZERO, Var("n"), turn)]


def declared(parts: Sequence[Part], depth: int, turn: Sequence[Stmt], key: str) -> list[Stmt]:
    """Return the statements that name what a turn changes: positions and ranks that count, and the last key.

    No key has the highest bit, so the first one differs from -1.
    """
    uses = used(turn)
    out: list[Stmt] = []
    for m in range(min(depth + 1, len(parts))):
        counts = [Let(position(m).name, Num(-1), True), Let(rank(m).name, ZERO, True)]
        out += [let for let in counts if let.name in uses]
    return [*out, Let("last", Num(-1), True, f"unsigned {key}")] if "last" in uses else out


def position(m: int) -> Var:
    """The position of an entry at level m of the target."""
    return Var(names.local(1, m, "p"))


def rank(m: int) -> Var:
    """How many positions came before it, below the same parent."""
    return Var(names.local(1, m, "rank"))


def coordinate(m: int) -> Var:
    """The coordinate of an entry at level m of the target."""
    return Var(names.local(1, m, "i"))


def parent(m: int) -> Expr:
    """The position above level m."""
    return position(m - 1) if m else ZERO


def size(m: int) -> Expr:
    """How many coordinates level m of the target has."""
    return Var(names.array(1, "size", m))


def place(part: Part, m: int) -> Expr:
    """Return the position of an entry at level m, as the level says."""
    known, arrays = walks.words(1, m, part.numbers, part.arrays)
    return walks.read(part.at, {**known, "p": parent(m), "i": coordinate(m), "size": size(m), "rank": rank(m)}, arrays)


def written(part: Part, m: int, i: Expr) -> list[Stmt]:
    """Return what level m writes for coordinate i; nothing, if it stores none."""
    if not part.write:
        return []
    known, arrays = walks.words(1, m, part.numbers, part.arrays)
    known |= {"p": parent(m), "i": i, "at": position(m), "size": size(m), "rank": rank(m)}
    return [walks.read_store(part.write, known, arrays)]


def entry(parts: Sequence[Part], depth: int, coords: Sequence[Expr], own: Sequence[Stmt] = ()) -> list[Stmt]:
    """Return what is done with an entry of these coordinates: counted for level ``depth``, or stored if there is none.

    ``now`` and ``last`` are the keys of this entry and the last. Entries come in order; where those of the fibre don't,
    its ``own`` statements count them or find their position.
    """
    store, out = depth == len(parts), list[Stmt]()
    for m, part in enumerate(parts[: min(depth + 1, len(parts))]):
        new = _changes(parts, m)
        out.append(Let(coordinate(m).name, coords[m]))
        if own and m == fibre(parts):
            out += own
            continue
        if m == depth:
            each = part.counts == "entries"
            at = add(mul(parent(m), size(m)), coordinate(m)) if each else parent(m)
            out.append(Store("out", at, ONE if each else new, "+="))
            continue
        if _counts_on(parts, m):
            out.append(Set(position(m).name, new, "+="))
        else:
            if "rank" in part.at:
                out += _ranked(parts, m)
            out.append(Let(position(m).name, place(part, m)))
        if store:
            stores = written(part, m, coordinate(m))
            once = "^=" in part.write and new != ONE  # all else may be written again for each entry
            out += [If(new, stores)] if once else stores
    return out


def _ranked(parts: Sequence[Part], m: int) -> list[Stmt]:
    """The rank starts again with each parent; without a branch, which would be a guess for each entry."""
    first = _changes(parts, m - 1) if m else Bin("==", Var("k"), ZERO)
    if not isinstance(first, Bin):
        return [Set(rank(m).name, ZERO)]
    same = Bin("==" if first.sign == "!=" else "!=", first.left, first.right)
    return [Set(rank(m).name, Bin("&", add(rank(m), _changes(parts, m)), Bin("-", ZERO, same)))]


def _counts_on(parts: Sequence[Part], m: int) -> bool:
    """Is the position just the next one, so that it needs no array? So it is where all parents come in order."""
    return starts(parts[m]) and all(part.ordered for part in parts[:m])


def starts(part: Part) -> bool:
    """Does ``pos`` say where the positions of each parent start? Then separately counted ranks continue from there."""
    return part.at == "pos[p] + rank" and "rank" not in part.write


def _changes(parts: Sequence[Part], m: int) -> Expr:
    """Has an entry another position at level m than the last one? Below a level that merges none, each has."""
    if m < 0:
        return ZERO
    seen = m if all(part.merges for part in parts[: m + 1]) else max(fibre(parts), m)
    if seen == len(parts) - 1:
        return ONE  # no entry occurs twice
    shift = Var(names.array(1, "shift", seen))
    return Bin("!=", Bin(">>", Var("now"), shift), Bin(">>", Var("last"), shift))
