"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.kernels.vnm.plan import SHARED, Launch

#: Up to this many tokens a bitmap is faster than its dense copy.
TOKENS = 64
_BITS = 544  # bytes of a piece's codes
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have
_SUMS = 112  # registers of a thread for sums, at most
_HIGH = 12  # strips at once, at most: each is code of its own
_MOST_SLOTS = 6  # of a warp: pieces that are on their way


class Shape(NamedTuple):
    """How strips of 16 rows and steps of 256 columns are divided."""

    groups: int  # of blocks: each has its own strips
    cluster: int  # blocks of a group, which share the columns
    high: int  # strips that a warp multiplies one after the other, for the same columns of x
    once: bool  # all strips of a block are multiplied at once


def shape(rows: int, cols: int, eights: int, new: bool, processors: int) -> Shape:
    """Return how a weight is divided among blocks.

    Examples
    --------
    >>> shape(14336, 4096, 1, True, 132)
    Shape(groups=132, cluster=1, high=7, once=True)
    >>> shape(1024, 4096, 1, True, 132)
    Shape(groups=64, cluster=2, high=1, once=True)
    """
    strips, steps = -(-rows // 16), -(-cols // 256)

    def each(cluster: int) -> int:  # strips of a group
        return -(-strips // max(processors // cluster, 1))

    cluster = 2 if new and steps >= 8 and each(2) < 1.9 * each(1) and processors > 1 else 1
    groups = min(strips, max(processors // cluster, 1))
    most = min(_SUMS // (4 * eights), _HIGH)
    passes = -(-each(cluster) // most)
    return Shape(groups, cluster, -(-each(cluster) // passes), passes == 1)


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
    steps = -(-cols // 256 // made.cluster) if cols > 256 else 1
    return launch(eights, most, new, element, activation, made, *_memory(eights, most, new, made, steps))


def launch(
    eights: int, most: int, new: bool, element: int, activation: int, made: Shape, warps: int, slots: int, ahead: int,
    sets: int, halves: int = 2,
) -> Launch:  # fmt: skip
    """Return a launch by its numbers of warps, of slots for pieces and for x of each, and of copies of the sums."""
    macros = {
        "ELEMENT": element, "NT": eights, "KW": warps, "SLOTS": slots, "XS": ahead, "HIGH": made.high, "SETS": sets,
        "CLUSTER": made.cluster, "ONCE": int(made.once), "HALVES": halves, "ACT": activation,
    }  # fmt: skip
    grid = (made.groups * made.cluster, 1, 1)
    shared = bytes_of(eights, most, made, warps, slots, ahead, sets)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * warps, shared, chained=new)


def bytes_of(eights: int, most: int, made: Shape, warps: int, slots: int, ahead: int, sets: int) -> int:
    """Return the bytes of shared memory that a block needs."""
    pieces = warps * (ahead * (eights * 4096 + 8) + slots * (slot_bytes(most) + 8))
    sums = sets * eights * 8 * (16 * made.high + 4) * 4
    return max(pieces, sums) if made.once else -(-pieces // 16) * 16 + sums


def _memory(eights: int, most: int, new: bool, made: Shape, steps: int) -> tuple[int, int, int, int]:
    """Return warps, slots for pieces and for x of each, and copies of the sums."""
    room = SHARED if new else _OTHERS
    rounds = [(warps, -(-steps // warps)) for warps in (8, 7, 9, 6, 10, 11, 5, 12, 4, 3, 2, 1) if 8 * warps >= made.high]
    rounds.sort(key=lambda found: found[0] * found[1])  # idle warps are last
    for slots, ahead, low in ((2, 2, 6), (2, 1, 4), (2, 1, 1), (1, 1, 1)):
        for warps, turns in rounds:
            tried = (warps, slots, min(ahead, turns), warps if made.once else 1)
            if warps < min(low, steps) or bytes_of(eights, most, made, *tried) > room:
                continue
            while tried[1] < _MOST_SLOTS and bytes_of(eights, most, made, warps, tried[1] + 1, *tried[2:]) <= room:
                tried = (warps, tried[1] + 1, *tried[2:])
            return tried
    raise AssertionError(f"{eights} x 8 tokens do not fit")


def slot_bytes(most: int) -> int:
    """Return the bytes of a slot: codes and words."""
    return _BITS + most * 2
