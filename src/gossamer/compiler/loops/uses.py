"""What statements use: the arrays and the variables that a nest must be given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gossamer.compiler.loops.nest import (
    ZERO,
    Acc,
    Blank,
    Drain,
    Expr,
    Find,
    For,
    If,
    Into,
    Let,
    Load,
    Nest,
    Prefetch,
    Set,
    Stmt,
    Stop,
    Store,
    Var,
    While,
    names_in,
)


def used(body: Sequence[Stmt]) -> dict[str, None]:
    """Return the names of arrays and variables that statements mention and don't name themselves, as they come.

    Examples
    --------
    >>> list(used([For("i", ZERO, Var("n"), [Store("out", Var("i"), Load("A", Var("i")))])]))
    ['n', 'out', 'A']
    """
    own: set[str] = set()
    found: dict[str, None] = {}
    for s in _all(body):
        for e in _expressions(s):
            found |= dict.fromkeys(sorted(names_in(e)))
        if isinstance(s, (Let, Acc, Find, Blank)):
            own.add(s.name)
        elif isinstance(s, For):
            own.add(s.var)
        elif isinstance(s, Drain):
            own |= {s.var, s.value}
    return {name: None for name in found if name not in own}


def routine(title: str, body: list[Stmt], types: Mapping[str, str], result: str = "", marks: Expr = ZERO) -> Nest:
    """Return a nest that takes what its statements use: arrays of these types, all else as integers.

    If coordinates are put into a workspace, ``marks`` is how many it may hold.
    """
    uses = {**used(body), **dict.fromkeys(sorted(names_in(marks)))}
    arrays = tuple((name, types[name]) for name in uses if name in types)
    sizes = tuple(name for name in uses if name not in types)
    workspace = None if marks == ZERO else "bits"
    return Nest(title, arrays, sizes, body, workspace=workspace, workspace_size=marks, result=result)


def _all(body: Sequence[Stmt]) -> Iterator[Stmt]:
    for s in body:
        yield s
        if isinstance(s, (For, While, If, Drain)):
            yield from _all(s.body)
        if isinstance(s, If):
            yield from _all(s.other)


def _expressions(s: Stmt) -> list[Expr]:
    """The expressions of one statement, without those of statements inside."""
    if isinstance(s, For):
        return [s.begin, s.end]
    if isinstance(s, (While, If)):
        return [s.condition]
    if isinstance(s, Store):
        return [Load(s.array, s.index), s.value]
    if isinstance(s, (Blank, Prefetch)):
        return [Load(s.array, s.index)]
    if isinstance(s, Find):
        return [Load(s.array, s.begin), s.end, s.coord]
    if isinstance(s, (Acc, Drain, Stop)):
        return []
    if isinstance(s, (Set, Into)):
        return [Var(s.name), s.value]
    return [s.value] if isinstance(s, Let) else [s.value, s.coord]
