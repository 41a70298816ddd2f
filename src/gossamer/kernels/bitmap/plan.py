"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from typing import NamedTuple

from gossamer.formats.levels.pieces import WIDTH
from gossamer.kernels.vnm.plan import SHARED, Launch

#: Up to this many tokens a bitmap is faster than its dense copy.
TOKENS = 64
WARPS = 16  # of a block, at most
FLIGHT = 64 * 1024  # bytes of pieces that a block has on their way, if there is room
TEAM_COST = 0.15  # how much longer a piece takes when the number of warps that share x is doubled

_BITS = {0: 416, 1: 384}  # bytes of a slot before the values of 16 bits (codes and zeros), or e4m3 (codes)
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have
_SUMS = 128  # registers of a thread for sums, at most
_WORKING = 72  # registers of a thread for everything else
_HIGH = 12  # strips at once, at most: each is code of its own


class Shape(NamedTuple):
    """How strips of 16 rows and steps of 128 columns are divided."""

    groups: int  # of blocks: each has its own strips
    cluster: int  # blocks of a group, which share the columns
    team: int  # warps that share columns of x, each with its own strips
    high: int  # strips that a warp multiplies one after the other, for the same columns of x
    passes: int  # turns until all strips of a block are multiplied


class Memory(NamedTuple):
    """How a block uses its shared memory."""

    warps: int
    slots: int  # of a warp, for pieces
    ahead: int  # slots of a team, for x
    sets: int  # copies of the sums


def product(
    tokens: int, rows: int, cols: int, most: int, capability: tuple[int, int], element: int, activation: int,
    processors: int, weight: int = 0,
) -> Launch:  # fmt: skip
    """Return the launch for up to 64 tokens.

    ``weight``: 0 for values of 16 bits, 1 for e4m3. ``most``: values of a piece, the largest number.
    """
    new, slot = capability >= (9, 0), slot_bytes(most, weight)
    room = SHARED if capability[0] in (9, 10) else _OTHERS  # a GPU for desktops has less than half
    eights = next(n for n in (1, 2, 4, 8) if n * 8 >= tokens)
    cluster = clusters(rows, cols, processors) if new else 1
    found = []
    for team in (1, 2, 4) if new else (1,):
        made = divided(rows, cluster, eights, processors, team)
        steps = -(-cols // (WIDTH * cluster))
        memory = memory_of(eights, slot, room, made, steps)
        if memory is not None:
            found.append((_pieces(memory.warps, made, steps) * (1 + TEAM_COST * (team // 2)), made, memory))
    _, made, memory = min(found, key=lambda each: each[0])
    return launch(eights, slot, element, activation, made, memory, new, weight, room)


def clusters(rows: int, cols: int, processors: int) -> int:
    """Return how many blocks share the columns: two if there are few strips.

    Examples
    --------
    >>> clusters(14336, 4096, 132), clusters(1024, 4096, 132)
    (1, 2)
    """
    strips = -(-rows // 16)

    def each(cluster: int) -> int:  # strips of a group
        return -(-strips // max(processors // cluster, 1))

    return 2 if cols > 14 * WIDTH and each(2) < 1.9 * each(1) and processors > 1 else 1


def divided(rows: int, cluster: int, eights: int, processors: int, team: int) -> Shape:
    """Return how a weight is divided among blocks.

    Examples
    --------
    >>> divided(14336, 1, 1, 132, 1)
    Shape(groups=132, cluster=1, team=1, high=7, passes=1)
    >>> divided(14336, 1, 8, 132, 2)
    Shape(groups=132, cluster=1, team=2, high=4, passes=1)
    """
    strips = -(-rows // 16)
    groups = min(strips, max(processors // cluster, 1))
    each = -(-strips // groups)
    passes = -(-each // (min(_SUMS // (4 * eights), _HIGH) * team))
    return Shape(groups, cluster, team, -(-each // (passes * team)), passes)


def memory_of(eights: int, slot: int, room: int, made: Shape, steps: int) -> Memory | None:
    """Return what fits and leaves a warp the fewest pieces, or None."""
    found = []
    for warps in range(made.team, WARPS + 1, made.team):
        if 8 * warps < made.high * made.team or 32 * warps * (4 * eights * made.high + _WORKING) > 65536:
            continue
        teams, turns = warps // made.team, -(-steps // (warps // made.team))
        for ahead in range(1, min(2, turns) + 1):
            best = None
            for slots in range(2, 7):
                memory = Memory(warps, slots, ahead, teams if made.passes == 1 else 1)
                if bytes_of(eights, slot, made, memory) > room:
                    break
                best = memory
                if warps * slots * slot >= FLIGHT:
                    break
            if best is not None:  # without x ahead, every turn waits for memory
                found.append((turns * (made.high + (2 if ahead < min(2, turns) else 0)), warps, best))
    return min(found)[2] if found else None


def _pieces(warps: int, made: Shape, steps: int) -> int:
    """Return how many pieces a warp has."""
    return -(-steps // (warps // made.team)) * made.high * made.passes


def launch(
    eights: int, slot: int, element: int, activation: int, made: Shape, memory: Memory, chained: bool, weight: int = 0,
    room: int = SHARED,
) -> Launch:  # fmt: skip
    """Return a launch by its numbers; ``room``: bytes of shared memory that a block may have."""
    macros = {
        "ELEMENT": element, "NT": eights, "KW": memory.warps, "TEAM": made.team, "SLOTS": memory.slots,
        "XS": memory.ahead, "HIGH": made.high, "SETS": memory.sets, "CLUSTER": made.cluster,
        "ONCE": int(made.passes == 1), "ACT": activation,
    }  # fmt: skip
    if weight:
        macros["WEIGHT"] = weight
    grid, shared = (made.groups * made.cluster, 1, 1), bytes_of(eights, slot, made, memory)
    if chained:  # more than half of the shared memory, so that only one block fits on a processor
        shared = max(shared, room // 2 + 1024)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * memory.warps, shared, chained=chained)


def bytes_of(eights: int, slot: int, made: Shape, memory: Memory) -> int:
    """Return the bytes of shared memory that a block needs."""
    x = memory.warps // made.team * memory.ahead * (eights * 16 * WIDTH + 16)
    pieces = x + memory.warps * memory.slots * (slot + 8)
    sums = memory.sets * eights * 8 * (16 * made.high * made.team + 4) * 4
    return max(pieces, sums) if made.passes == 1 else -(-pieces // 16) * 16 + sums


def slot_bytes(most: int, weight: int = 0) -> int:
    """Return the bytes of a slot: codes and words."""
    return _BITS[weight] + most * (1 if weight else 2)
