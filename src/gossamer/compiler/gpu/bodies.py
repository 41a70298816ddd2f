"""What the body of a loop is, for loops that are written in a special way: one turn, one sum, a sum for each entry."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.compiler.loops.nest import Acc, Bin, Expr, For, If, Into, Let, Num, Stmt, Store, While, add

_ONE = Num(1)


def once(s: Stmt) -> bool:
    """Is it a loop of one turn?"""
    return isinstance(s, For) and s.end in (add(s.begin, _ONE), Bin("+", s.begin, _ONE))


def straight(body: list[Stmt]) -> list[Stmt] | None:
    """Return the statements of a loop as a list without loops: names and one sum; None if it has more."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, For) and once(s):
            inner = straight(s.body)
            if inner is None:
                return None
            out += [Let(s.var, s.begin), *inner]
        elif (isinstance(s, Let) and not s.varies) or isinstance(s, Into):
            out.append(s)
        else:
            return None
    return out if sum(isinstance(s, Into) for s in out) == 1 and isinstance(out[-1], Into) else None


def adds_to(s: Stmt, name: str) -> bool:
    """Is something added here to the sum of this name?"""
    inside = [*s.body, *(s.other if isinstance(s, If) else ())] if isinstance(s, (For, While, If)) else []
    return (isinstance(s, Into) and s.name == name) or any(adds_to(x, name) for x in inside)


class Row(NamedTuple):
    """A loop over the entries of a row: names of each entry, the loop over its terms, and where its sum is stored."""

    lets: list[Let]
    terms: For
    into: Into
    store: Store | None  # None: the sums of all entries are added up


def row_of(s: For, var: str) -> Row | None:
    """Return a loop over entries whose body is a sum along ``var`` for each; None if it is something else."""
    lets, body = [], list(s.body)  # type: list[Let], list[Stmt]
    while body and (isinstance(body[0], Let) or (len(body) == 1 and once(body[0]))):
        first = body.pop(0)
        if isinstance(first, Let):
            lets.append(first)
        elif isinstance(first, For):
            lets.append(Let(first.var, first.begin))
            body = list(first.body)
    store = body[-1] if len(body) == 3 and isinstance(body[0], Acc) and isinstance(body[-1], Store) else None
    terms = body[1] if store is not None else body[0] if len(body) == 1 else None
    if not isinstance(terms, For) or terms.var != var or any(x.varies for x in lets):
        return None
    inner = straight(terms.body)
    into = inner[0] if inner is not None and len(inner) == 1 else None
    if not isinstance(into, Into) or into.sign != "+=":
        return None
    return Row(lets, terms, into, store if isinstance(store, Store) else None)


def factors(e: Expr) -> list[Expr]:
    """Return the factors of a product.

    Examples
    --------
    >>> from gossamer.compiler.loops.nest import Var
    >>> factors(Bin("*", Bin("*", Var("a"), Num(2)), Bin("+", Var("b"), Num(1))))
    [Var(name='a'), Num(value=2), Bin(sign='+', left=Var(name='b'), right=Num(value=1))]
    """
    return [*factors(e.left), *factors(e.right)] if isinstance(e, Bin) and e.sign == "*" else [e]
