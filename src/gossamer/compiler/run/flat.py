"""Equal patterns: what is computed entry by entry needs no index, only the values, one after another.

A product, sum or function of operands that all have one pattern and the same indices, kept as it is or summed, is
a loop over their values: no merge, no coordinate is read. So is each of its gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gossamer.compiler import Statement
from gossamer.compiler.language.algebra import needed
from gossamer.formats import Format, Structure
from gossamer.formats.levels import Compressed, Dense, Singleton

if TYPE_CHECKING:
    from gossamer.compiler.run.args import Arg

_ENTRY = "entry"
_WHOLE = (Dense, Compressed, Singleton)  # levels without padding


class Flat(NamedTuple):
    """A statement over values, and the operand whose pattern they all have."""

    statement: Statement
    args: list[Arg]
    sizes: dict[str, int]
    like: int


def flattened(statement: Statement, args: Sequence[Arg], sizes: dict[str, int], out: str | int | Format) -> Flat | None:
    """Return the statement over values alone; None if it needs coordinates.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.ops.plans_of import plan_of
    >>> a = gs.from_dense(torch.eye(4), gs.CSR())
    >>> print(plan_of("ij,ij->", [a, 2 * a]).kernel.loops)
    # C[] = sum over entry of A[entry] * B[entry]
    # A dense(entry), B dense(entry); output dense()
    out.acc = 0
    in parts for entry in 0 .. entry.size:
      out.acc += A.val[entry] * B.val[entry]
    out[0] = out.acc
    """
    sparse = [k for k, a in enumerate(args) if a.structure is not None]
    if statement.reduce != "sum" or not sparse or any(a.vars for a in args if a.structure is None):
        return None
    first = args[sparse[0]]
    like, own = first.structure, first.vars
    if like is None or not whole(like) or len(set(own)) < len(own) or not set(sizes) <= set(own):
        return None
    kept = statement.output == own and (isinstance(out, int) or out == like.format)
    if not kept and (statement.output or out != "dense"):
        return None
    if frozenset() in needed(statement.tree, frozenset(sparse)) or any(args[k].vars != own for k in sparse):
        return None  # it is not zero where nothing is stored, or reads the transpose
    if any(not like.same(s) for k in sparse[1:] if (s := args[k].structure) is not None):
        return None
    entries = math.prod(like.value_shape)
    flat = [a._replace(vars=(_ENTRY,) if a.structure else (), structure=None, shape=(entries,) * bool(a.structure))
            for a in args]  # fmt: skip
    output = (_ENTRY,) if statement.output else ()
    inner = Statement(tuple(a.vars for a in flat), output, statement.tree)
    return Flat(inner, flat, {_ENTRY: entries}, sparse[0])


def whole(structure: Structure) -> bool:
    """Return whether every value is an entry."""
    format, shape = structure.format, structure.shape
    return not structure.plain and not format.pads(shape) and all(type(x) in _WHOLE for x in format.stack(len(shape)))
