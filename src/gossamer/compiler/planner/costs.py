"""What a step costs: estimates in nanoseconds of one core, from entries alone.

The weights were measured on one core with AVX-512 (Zen 4), float32. Only their ratios decide between plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.compiler.planner.facts import Facts, joined

GEMM = 0.02  # a multiplication in torch's dense product
ELEMENT = 0.3  # one of dense tensors that are multiplied element by element
LANE = 0.08  # one in lanes of a vector, at an entry, added to a row of the result
DOT = 0.045  # one in lanes of a vector whose sum is one entry
ENTRY = 1.0  # an entry that meets one place: it is read alone
MEET = 3.0  # an entry that is looked for in another sparse operand, or scattered into a sparse row
READ, WRITE = 0.1, 0.3  # an element of a dense operand, of a dense result
WALK, APPEND = 0.4, 4.0  # an entry of a sparse operand, of a sparse result
CALL, STRUCTURE = 6_000.0, 60_000.0  # a step; a step whose result has a new pattern
FACTOR = 0.5  # share of a multiplication that each dense factor of a row after the second adds


class Cost(NamedTuple):
    """Estimated nanoseconds, multiplications, and bytes that are read and written."""

    time: float
    operations: float
    moved: float

    def __add__(self, other: object) -> Cost:
        assert isinstance(other, Cost)
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


FREE = Cost(0.0, 0.0, 0.0)


def cost(parts: Sequence[Facts], made: Facts, new: bool) -> Cost:
    """Return the cost of one kernel over these parts. ``new``: its result has a pattern that no part has.

    Examples
    --------
    >>> a, x = Facts(("i", "k"), (100, 100), 1000.0, True), Facts(("k", "j"), (100, 64), 6400.0, False)
    >>> cost([a, x], Facts(("i", "j"), (100, 64), 6400.0, False), False).operations
    64000.0
    """
    turns = joined(parts)
    multiplied = turns * max(len(parts) - 1, 1)
    time = turns * _turn(parts, made) + CALL + (STRUCTURE if new else 0.0)
    moved = 0.0
    for part in parts:
        time += part.entries * (WALK if part.sparse else READ)
        moved += _bytes(part)
    time += made.entries * APPEND if made.sparse else made.places * WRITE
    return Cost(time, multiplied, moved + _bytes(made))


def _turn(parts: Sequence[Facts], made: Facts) -> float:
    """One innermost turn."""
    sparse = [part for part in parts if part.sparse]
    if not sparse:
        shared = len(parts) == 2 and set(parts[0].names) & set(parts[1].names) - set(made.names)
        matrices = shared and all(set(made.names) - set(part.names) for part in parts)
        return GEMM if matrices else ELEMENT
    every = {v: size for part in parts for v, size in zip(part.names, part.sizes, strict=True)}
    free = {v: size for v, size in every.items() if not any(v in part.names for part in sparse)}
    alone = MEET if len(sparse) > 1 else ENTRY
    if not free:
        return alone
    strip = max(free, key=lambda v: free[v])  # an entry meets a row
    rows = sum(strip in part.names for part in parts)
    lane = (LANE if strip in made.names else DOT) * (1 + FACTOR * max(rows - 2, 0))
    return max(lane, alone / max(free[strip], 1))


def _bytes(facts: Facts) -> float:
    return facts.entries * 8 if facts.sparse else facts.places * 4
