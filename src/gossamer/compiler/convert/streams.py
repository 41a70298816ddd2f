"""Nests of conversions that need no sort: the levels of the source are walked, and each entry is stored as it comes.

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

from gossamer.compiler.convert import writers
from gossamer.compiler.convert.conversion import Cut
from gossamer.compiler.convert.readers import Walked, keyed, walk
from gossamer.compiler.convert.writers import Part, coordinate, parent, position, rank
from gossamer.compiler.loops import names
from gossamer.compiler.loops.nest import (
    ONE,
    ZERO,
    Bin,
    Drain,
    Expr,
    For,
    If,
    Let,
    Load,
    Nest,
    Num,
    Prefetch,
    Scatter,
    Set,
    Stmt,
    Store,
    Var,
    add,
    substituted,
)
from gossamer.compiler.loops.uses import routine, used

_SOON = 32  # entries ahead for which memory is asked


def stream(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], mode: str, key: str, value: str
) -> dict[str, Nest]:
    """Return the nests that store the entries of one stack of levels in another; each returns how many they are.

    ``count{n}`` counts for level n, and ``count`` all entries; ``store`` writes the arrays. It brings the values along
    if their type is given, and else says where each entry was and is: ``where`` and ``place``, or only ``where`` for
    each place.
    """
    types = {**source.types(), **writers.types(parts), "from": value, "to": value}
    types |= dict.fromkeys(("out", "ranks", "seen", "found", "where", "place"), "int")
    depths = {f"count{m}": m for m, part in enumerate(parts) if part.counts}
    found = {}
    for name, depth in {"count": -1, **depths, "store": len(parts)}.items():
        body = _pass(source, parts, target, depth, mode, key, value)
        collects = mode == "together" and depth == writers.fibre(parts)
        found[name] = routine(f"{name}, {mode}", body, types, "k", writers.size(depth) if collects else ZERO)
    return found


def _pass(
    source: Walked, parts: Sequence[Part], target: Sequence[Cut], depth: int, mode: str, key: str, value: str
) -> list[Stmt]:
    """One walk: count all (-1), count for level ``depth``, or store if there is none."""
    store, last = depth == len(parts), position(len(parts) - 1)
    own = {"apart": _apart, "together": _together}[mode](parts, store) if mode != "in order" else []
    coords = [cut.coordinate() for cut in target]
    done = writers.entry(parts, depth, coords, own) if depth >= 0 else []
    compares = "last" in used(done)
    done = [*keyed(target, key), *done, Set("last", Var("now"))] if compares else done
    if store and mode == "apart":
        done = [*_ahead(source, parts, coords, value), *done]

    def inside(at: Expr) -> list[Stmt]:
        return [*done, *(_noted(at, last, value) if store else []), Set("k", ONE, "+=")]

    together = mode == "together" and depth >= writers.fibre(parts)
    begin: list[Stmt] = [Let("k", ZERO, True), *writers.declared(parts, depth, done, key)]
    begin += [Let("held", Num(-1), True), Let("next", ZERO, True)] if together else []
    after = _collected(parts) if together and not store else []
    return [*begin, *walk(source, "x", inside), *after]


def _noted(at: Expr, last: Expr, value: str) -> list[Stmt]:
    """The value of an entry at its place, or where it was and is."""
    if value:
        return [Store("to", last, Load("from", at))]
    k = Var("k")
    return [
        If(Var("where.given"), [If(Var("place.given"), [Store("where", k, at)], [Store("where", last, at)])]),
        If(Var("place.given"), [Store("place", k, last)]),
    ]


def _apart(parts: Sequence[Part], store: bool) -> list[Stmt]:
    """Each parent has its own rank; where positions are shared, also what it has seen last."""
    m = writers.fibre(parts)
    part, above, lone = parts[m], parent(m), writers.lone(parts)
    new: Expr = ONE if lone else Var("new")
    out: list[Stmt] = []
    if not lone:
        now = add(coordinate(m), ONE)
        out += [Let("new", Bin("!=", Load("seen", above), now)), Store("seen", above, now)]
    if not store:
        return [*out, Store("out", above, new, "+=")]
    to = position(m) if writers.starts(part) else rank(m)
    if lone:
        out += [Let(to.name, Load("ranks", above)), Store("ranks", above, ONE, "+=")]
    else:
        out += [Store("ranks", above, new, "+="), Let(to.name, Bin("-", Load("ranks", above), ONE))]
    if not writers.starts(part):
        out.append(Let(position(m).name, writers.place(part, m)))
    return [*out, *writers.written(part, m, coordinate(m))]


def _ahead(source: Walked, parts: Sequence[Part], coords: Sequence[Expr], value: str) -> list[Stmt]:
    """Ask for the memory of an entry that comes soon: each goes to another parent, and so to a distant place.

    Its coordinates above are taken to be those of this one. Where they are not, the guess is wrong but harmless: it
    stays within the arrays.
    """
    n, m = len(source.levels) - 1, writers.fibre(parts)
    inner = source.levels[n].walk
    if inner.coord != "crd[at]" or inner.real or source.guards or source.order[-1] != n or not writers.starts(parts[m]):
        return []
    soon = add(Var(names.local(0, n, "q")), Num(_SOON))
    means: dict[str, Expr] = {names.local(0, n, "i"): Load(names.array(0, "crd", n), soon)}
    means |= {let.name: let.value for let in source.coordinates("x")}
    for k, part in enumerate(parts[:m]):
        means |= {coordinate(k).name: coords[k], position(k).name: writers.place(part, k)}
    there = Var("there")
    out: list[Stmt] = [Let("there", substituted(Load("ranks", parent(m)), means))]
    out += [Prefetch(names.array(1, "crd", m), there)]
    out += [Prefetch("to", there)] if value and writers.lone(parts) else []
    return [If(Bin("<", soon, Var("A.places")), out)]


def _together(parts: Sequence[Part], store: bool) -> list[Stmt]:
    """The coordinates of a parent are collected when entries are counted, and stored when it comes again."""
    m = writers.fibre(parts)
    part, above, found = parts[m], parent(m), Load("found", Var("next"))
    if not store:
        done = [*_collected(parts), Set("held", above)]
        return [If(Bin("!=", above, Var("held")), done), Scatter(coordinate(m), Num(0.0))]
    each: list[Stmt] = [
        Let(position(m).name, writers.place(part, m)),
        *writers.written(part, m, found),
        Store("seen", found, position(m)),
        Set("next", ONE, "+="),
    ]
    all_of_it: list[Stmt] = [Set("held", above), For(rank(m).name, ZERO, Load("out", above), each)]
    return [If(Bin("!=", above, Var("held")), all_of_it), Let(position(m).name, Load("seen", coordinate(m)))]


def _collected(parts: Sequence[Part]) -> list[Stmt]:
    """How many coordinates the last parent has, and which."""
    m, first = writers.fibre(parts), Var("first")
    one = Var(names.local(1, m, "one"))
    note: list[Stmt] = [Store("found", Var("next"), one), Set("next", ONE, "+=")]
    count = Store("out", Var("held"), Bin("-", Var("next"), first))
    drain = Drain(one.name, "", note)
    return [If(Bin(">=", Var("held"), ZERO), [Let("first", Var("next")), drain, count])]
