"""Affine access: ``"o k, i+k -> o i"`` reads a signal at i + k, as convolutions do.

An operand that is read so is a view with one more dimension, whose windows overlap in memory: nothing is copied, and
the rest of the expression is an ordinary one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_TERM = re.compile(r"(?:(\d+)\*)?([A-Za-z]\w*)")


class Window(NamedTuple):
    """A dimension that is read at ``stride * place + step * offset``."""

    operand: int
    dim: int
    place: str
    offset: str
    stride: int
    step: int


class Affine(NamedTuple):
    """An expression without affine access, and the dimensions that are cut into windows for it."""

    expression: str
    windows: tuple[Window, ...]


@lru_cache(maxsize=256)
def affine(text: str, operands: int) -> Affine | None:
    """Read affine access in an expression for this number of operands; None if there is none.

    Groups are words here. A ``+`` is a sum of operands wherever their number says so.

    Examples
    --------
    >>> found = affine("o c p, b c 2*i+p -> b o i", 2)
    >>> found.expression, found.windows[0].stride
    ('o c p, b c i p -> b o i', 2)
    >>> affine("ij,j + i -> i", 3) is None
    True
    """
    left, arrow, right = text.partition("->")
    groups = left.split(",")
    if "+" not in left or "(" in left or ":" in left or not arrow or len(groups) != operands:
        return None
    windows: list[Window] = []
    out = []
    for k, group in enumerate(groups):
        words = re.sub(r"\s*([+*])\s*", r"\1", group).split()
        names: list[str] = []
        for d, word in enumerate(words):
            terms = [_TERM.fullmatch(term) for term in word.split("+")]
            if len(terms) == 1:
                names.append(word)
                continue
            if len(terms) != 2 or None in terms:
                return None
            (stride, place), (step, offset) = (term.groups() for term in terms if term is not None)
            windows.append(Window(k, d, place, offset, int(stride or 1), int(step or 1)))
            names += [place, offset]
        out.append(" ".join(names))
    return Affine(f"{', '.join(out)} -> {right.strip()}", tuple(windows)) if windows else None
