"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.kernels.vnm.plan import SHARED, Launch

#: Up to this many tokens a bitmap is faster than its dense copy.
TOKENS = 64
_BITS = 544  # bytes of a piece's codes
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have
_SUMS = 128  # registers of a thread for sums, at most
_HIGH = 12  # strips at once, at most: each is code of its own
_WARPS = (8, 7, 9, 6, 10, 11, 5, 12, 4, 3, 2, 1)  # of a block, the best first
_MOST_SLOTS = 6  # of a warp: pieces that are on their way


class Shape(NamedTuple):
    """How strips of 16 rows and steps of 256 columns are divided."""

    groups: int  # of blocks: each has its own strips
    cluster: int  # blocks of a group, which share the columns
    team: int  # warps that share columns of x, each with its own strips
    high: int  # strips that a warp multiplies one after the other, for the same columns of x
    once: bool  # all strips of a block are multiplied at once


def shape(rows: int, cols: int, eights: int, new: bool, processors: int, team: int | None = None) -> Shape:
    """Return how a weight is divided among blocks.

    Examples
    --------
    >>> shape(14336, 4096, 1, True, 132)
    Shape(groups=132, cluster=1, team=1, high=7, once=True)
    >>> shape(14336, 4096, 8, True, 132)
    Shape(groups=132, cluster=1, team=2, high=4, once=True)
    >>> shape(1024, 4096, 1, True, 132)
    Shape(groups=64, cluster=2, team=1, high=1, once=True)
    """
    strips, steps = -(-rows // 16), -(-cols // 256)

    def each(cluster: int) -> int:  # strips of a group
        return -(-strips // max(processors // cluster, 1))

    cluster = 2 if new and steps >= 8 and each(2) < 1.9 * each(1) and processors > 1 else 1
    return divided(strips, cluster, eights, processors, team or (2 if new and eights > 2 and each(cluster) > 1 else 1))


def divided(strips: int, cluster: int, eights: int, processors: int, team: int) -> Shape:
    """Return the shape for clusters and teams of these sizes."""
    groups = min(strips, max(processors // cluster, 1))
    most = min(_SUMS // (4 * eights), _HIGH) * team
    each = -(-strips // groups)
    passes = -(-each // most)
    return Shape(groups, cluster, team, -(-each // (passes * team)), passes == 1)


def product(
    tokens: int, rows: int, cols: int, most: int, capability: tuple[int, int], element: int, activation: int,
    processors: int,
) -> Launch:  # fmt: skip
    """Return the launch for up to 64 tokens.

    ``most``: values of a piece, the largest number.
    """
    new = capability >= (9, 0)
    eights = next(n for n in (1, 2, 4, 8) if n * 8 >= tokens)
    made = shape(rows, cols, eights, new, processors)
    steps = -(-cols // (256 * made.cluster))
    return launch(eights, most, element, activation, made, _memory(eights, most, new, made, steps), new)


class Memory(NamedTuple):
    """How a block uses its shared memory."""

    warps: int
    slots: int  # of a warp, for pieces
    ahead: int  # slots of a team, for x
    sets: int  # copies of the sums


def launch(
    eights: int, most: int, element: int, activation: int, made: Shape, memory: Memory, chained: bool, halves: int = 2
) -> Launch:
    """Return a launch by its numbers."""
    macros = {
        "ELEMENT": element, "NT": eights, "KW": memory.warps, "TEAM": made.team, "SLOTS": memory.slots,
        "XS": memory.ahead, "HIGH": made.high, "SETS": memory.sets, "CLUSTER": made.cluster, "ONCE": int(made.once),
        "HALVES": halves, "ACT": activation,
    }  # fmt: skip
    grid, shared = (made.groups * made.cluster, 1, 1), bytes_of(eights, most, made, memory)
    if chained:  # more than half of the shared memory, so that only one block fits on a processor
        shared = max(shared, SHARED // 2 + 1024)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * memory.warps, shared, chained=chained)


def bytes_of(eights: int, most: int, made: Shape, memory: Memory) -> int:
    """Return the bytes of shared memory that a block needs."""
    x = memory.warps // made.team * memory.ahead * (eights * 4096 + 16)
    pieces = x + memory.warps * memory.slots * (slot_bytes(most) + 8)
    sums = memory.sets * eights * 8 * (16 * made.high * made.team + 4) * 4
    return max(pieces, sums) if made.once else -(-pieces // 16) * 16 + sums


def _memory(eights: int, most: int, new: bool, made: Shape, steps: int) -> Memory:
    """Return the most slots for the number of warps that leaves the fewest idle."""
    room = SHARED if new else _OTHERS
    counts = [n for n in _WARPS if n % made.team == 0 and 8 * n >= made.high * made.team]
    counts.sort(key=lambda n: n // made.team * -(-steps // (n // made.team)))  # those that leave warps idle are last
    for ahead, low in ((2, 6), (1, 4), (1, 1)):
        for warps in counts:
            teams = warps // made.team
            tried = Memory(warps, 1, min(ahead, -(-steps // teams)), teams if made.once else 1)
            fitting = [
                n for n in range(2, _MOST_SLOTS + 1) if bytes_of(eights, most, made, tried._replace(slots=n)) <= room
            ]
            if fitting and teams * made.team >= min(low, steps):
                return tried._replace(slots=fitting[-1])
    raise AssertionError(f"{eights} x 8 tokens do not fit")


def slot_bytes(most: int) -> int:
    """Return the bytes of a slot: codes and words."""
    return _BITS + most * 2
