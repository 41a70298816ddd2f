"""Lanes of vectors: how many, and what an index does from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, field

from gossamer.compiler.loops import names

BYTES = {"float": 4, "double": 8, "int": 4, "long": 8}


@dataclass
class Lanes:
    """A loop that is written in vectors.

    Its variable, lanes of a vector, vectors; how other names move with it, and which stand for vectors themselves.
    """

    var: str
    width: int
    count: int
    moves: dict[str, int] = field(default_factory=dict)
    open: str = ""  # a sum that has been begun, and not been stored
    held: set[str] = field(default_factory=lambda: {names.ACC})

    @property
    def type(self) -> str:
        return f"v{self.width}"


class NotLinear(Exception):  # noqa: N818 - control flow of the writer: such a loop is written lane by lane
    """An index does not move by 0 or 1 with the lanes."""
