"""How patterns are written: pieces of the forms that `as_pattern` reads and `str` prints."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple


class Form(NamedTuple):
    """One way to write a pattern: an example, a regular expression, and a function of its groups."""

    example: str
    regex: str
    build: Callable[..., Any]


INT = r"(\d+)"
PERCENT = r"(\d+(?:\.\d*)?|\.\d+) ?%"
NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)"


def percent(sparsity: float) -> str:
    """0.9 -> "90%", exactly: reading it back gives the same float."""
    return f"{(Decimal(repr(sparsity)) * 100).normalize():f}%"


def from_percent(text: str) -> float:
    """ "90" -> 0.9."""
    return float(Decimal(text) / 100)
