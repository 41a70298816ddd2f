"""Keys in order: counted by a digit of their bits, then moved to where that digit begins, a digit at a time, stably."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.compiler.convert.layout import C_INDEX, Layout
from gossamer.compiler.convert.memory import fresh
from gossamer.compiler.convert.passes import Passes
from gossamer.compiler.loops.nest import ONE, ZERO, Bin, Expr, For, If, Let, Load, Nest, Set, Stmt, Stop, Store, Var
from gossamer.compiler.loops.uses import routine

_DIGIT, _ONE_DIGIT = 11, 14  # bits of a digit; up to how many it is only one


class Keys(NamedTuple):
    """Entries that were read: their keys, and where each was."""

    key: Tensor  # one more than there are entries, so that a reader may write before it knows whether it is one
    where: Tensor | None  # None: entry k was at k
    n: int
    levels: int  # the number of the target's levels that they must be sorted by
    width: torch.dtype  # of the numbers of places
    repeats: bool = False  # may a key be there twice?
    group: Tensor | None = None  # where one was: which of the keys that are left each entry has


def in_order(entries: Keys, layout: Layout) -> Keys:
    """Return entries sorted by their keys, as far as they are not.

    Examples
    --------
    >>> import torch
    >>> from gossamer.compiler.run.runtime import available
    >>> from gossamer.compiler.convert.conversion import Cut
    >>> from gossamer.compiler.convert.layout import Target
    >>> from gossamer.formats.levels import Compressed
    >>> layout = Layout.of(Target((Compressed(),), (16,), (Cut(0),), (16,)))
    >>> keys = Keys(torch.tensor([9, 2, 5, 0], dtype=torch.int32), None, 3, 1, torch.int32)
    >>> in_order(keys, layout).where.tolist() if available() else [1, 2, 0]
    [1, 2, 0]
    """
    key, where, n, levels, index, *_ = entries
    width = sum(layout.bits[:levels])
    if not width or n < 2:
        return entries
    digits = 1 if width <= _ONE_DIGIT else -(-width // _DIGIT)
    bits = -(-width // digits)
    counts = torch.zeros(digits << bits, dtype=index)
    passes, sizes = _passes(layout.key, C_INDEX[index]), {"n": n, "bits": bits, "buckets": 1 << bits}
    low = layout.shifts[levels - 1]
    passes.run("count", {"key": key, "counts": counts}, sizes | {"digits": digits, "low": low})
    key2, where2 = fresh(n + 1, key.dtype), fresh(n, index)
    for digit in range(digits):
        arrays = {"key": key, "where": where, "key2": key2, "where2": where2, "counts": counts[digit << bits :]}
        given = sizes | {"shift": low + digit * bits, "where.given": where is not None}
        if passes.run("move", arrays, given):
            key, key2 = key2, key
            where, where2 = where2, fresh(n, index) if where is None else where
    return entries._replace(key=key, where=where)


def merged(entries: Keys, layout: Layout) -> Keys:
    """Return sorted entries without those whose key is there already, and the one that each belongs to."""
    passes, sizes = _passes(layout.key, C_INDEX[entries.width]), {"n": entries.n}
    if not passes.run("repeats", {"key": entries.key}, sizes):
        return entries
    group = torch.empty(entries.n, dtype=entries.width)
    left = passes.run("unique", {"key": entries.key, "group": group}, sizes)
    return entries._replace(n=left, group=group)


@functools.lru_cache(maxsize=4)
def _passes(key: str, index: str) -> Passes:
    return Passes(sorters(f"unsigned {key}", index))


def sorters(key: str, index: str) -> dict[str, Nest]:
    """Return the nests that sort keys: ``count``, ``move`` for each digit, ``repeats`` and ``unique``."""
    types = dict.fromkeys(("key", "key2"), key) | dict.fromkeys(("where", "where2", "counts", "group"), index)
    written: dict[str, tuple[Callable[[], list[Stmt]], str]] = {
        "count": (_count, ""), "move": (_move, "moved"), "repeats": (_repeats, "found"), "unique": (_unique, "left"),
    }  # fmt: skip
    return {name: routine(name, body(), types, result) for name, (body, result) in written.items()}


def _digit(now: Expr, shift: Expr) -> Expr:
    return Bin("&", Bin(">>", now, shift), Bin("-", Var("buckets"), ONE))


def _count() -> list[Stmt]:
    """How often each digit is there, for all digits in one pass."""
    d = Var("d")
    digit = _digit(Load("key", Var("k")), Bin("+", Var("low"), Bin("*", d, Var("bits"))))
    count = Store("counts", Bin("+", Bin("*", d, Var("buckets")), digit), ONE, "+=")
    return [For("k", ZERO, Var("n"), [For("d", ZERO, Var("digits"), [count])])]


def _move() -> list[Stmt]:
    """Keys to where their digit begins, unless all have the same."""
    k, to, shift = Var("k"), Var("to"), Var("shift")
    begins: list[Stmt] = [
        Let("here", Load("counts", Var("b"))),
        Store("counts", Var("b"), Var("before")),
        Set("before", Var("here"), "+="),
    ]
    turn: list[Stmt] = [
        Let("now", Load("key", k), type="unsigned long"),
        Let("digit", _digit(Var("now"), shift)),
        Let("to", Load("counts", Var("digit"))),
        Store("counts", Var("digit"), ONE, "+="),
        Store("key2", to, Var("now")),
        If(Var("where.given"), [Store("where2", to, Load("where", k))], [Store("where2", to, k)]),
    ]
    move: list[Stmt] = [
        Let("before", ZERO, True),
        For("b", ZERO, Var("buckets"), begins),
        For("k", ZERO, Var("n"), turn),
        Set("moved", ONE),
    ]
    same = Load("counts", _digit(Load("key", ZERO), shift))
    return [Let("moved", ZERO, True), If(Bin("<", same, Var("n")), move)]


def _repeats() -> list[Stmt]:
    """Is a key the same as the one before it?"""
    now, before = Load("key", Var("k")), Load("key", Bin("-", Var("k"), ONE))
    stop = If(Bin("==", now, before), [Set("found", ONE), Stop()])
    return [Let("found", ZERO, True), For("k", ONE, Var("n"), [stop])]


def _unique() -> list[Stmt]:
    """Each key once, and which of them each entry has."""
    k, last = Var("k"), Bin("-", Var("left"), ONE)
    new = Bin("||", Bin("==", Var("left"), ZERO), Bin("!=", Load("key", k), Load("key", last)))
    turn: list[Stmt] = [
        Set("left", new, "+="),
        Store("key", last, Load("key", k)),
        Store("group", k, last),
    ]
    return [Let("left", ZERO, True), For("k", ZERO, Var("n"), turn)]
