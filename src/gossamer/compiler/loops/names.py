"""Names in a loop nest: an index has the name that the user gave it, and every name of ours has a dot.

So none of ours is ever an index, whatever the indices are called. ``emit.names`` turns both into names of C.
"""

from __future__ import annotations

from gossamer.compiler.language.tree import operand_name

ACC = "out.acc"  # the sum (or maximum) that is being made
SEEN = "out.seen"  # how many terms it has
COUNT = "out.n"  # entries that are appended so far
FIRST = "out.first"  # the first of them in this row
DRAINED = "out.w"  # a value that leaves the workspace
TOTAL = "out.total"  # how many places one result has, where there are several to be added up
OUT, OUT_CRD, OUT_COUNT = "out", "out.crd", "out.count"  # arrays
PART = "out.part"  # the array of sums of pieces


def size(index: str) -> str:
    """Return the name of an index's size.

    Examples
    --------
    >>> size("i")
    'i.size'
    """
    return f"{index}.size"


def values(k: int) -> str:
    """Return the array of an operand's values.

    Examples
    --------
    >>> values(0)
    'A.val'
    """
    return f"{operand_name(k)}.val"


def array(k: int, name: str, level: int) -> str:
    """Return an array (or an integer) of an operand's level.

    Examples
    --------
    >>> array(1, "pos", 0)
    'B.pos0'
    """
    return f"{operand_name(k)}.{name}{level}"


def stride(what: str, dim: int) -> str:
    """Return the stride of a dimension of an ordinary tensor: an operand's name, or ``"out"``.

    Examples
    --------
    >>> stride("A", 1)
    'A.s1'
    """
    return f"{what}.s{dim}"


def local(k: int, level: int, what: str) -> str:
    """Return a variable of the walk over an operand's level.

    Examples
    --------
    >>> local(0, 1, "q")
    'A1.q'
    """
    apart = "_" if k >= 26 else ""  # operand A1 at level 0 is not operand A at level 10
    return f"{operand_name(k)}{apart}{level}.{what}"
