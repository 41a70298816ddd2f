"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from gossamer.kernels.vnm.plan import SHARED, Launch

#: Up to this many tokens a bitmap is faster than its dense copy.
TOKENS = 32
_BITS = 512  # bytes of a piece's bits
_TABLE = 64 * 1024  # bytes
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have
_WARPS = 16  # of a block, at most
_SLOTS = 2  # of a warp: pieces that are on their way


def product(
    tokens: int, rows: int, cols: int, most: int, capability: tuple[int, int], element: int, activation: int,
    processors: int,
) -> Launch:  # fmt: skip
    """Return the launch for up to 32 tokens.

    ``most``: values of a piece, the largest number.
    """
    new = capability >= (9, 0)
    eights = next(n for n in (1, 2, 4) if n * 8 >= tokens)
    blocks, steps = -(-rows // 64), -(-cols // 64)
    cluster = 2 if new and 2 * blocks <= processors and steps >= 16 else 1
    sets = 4 if eights < 4 and new else 1
    each = _SLOTS * (eights * 1024 + 8 + slot_bytes(most))  # bytes of shared memory of a warp
    fixed = _TABLE + sets * eights * 8 * (64 + 4) * 4 + 128
    warps = _power_of_two(min(((SHARED if new else _OTHERS) - fixed) // each, _WARPS, -(-steps // cluster)))
    macros = {
        "ELEMENT": element, "NT": eights, "KW": warps, "SLOTS": _SLOTS, "SETS": min(sets, warps), "CLUSTER": cluster,
        "ACT": activation,
    }  # fmt: skip
    grid = (min(blocks, processors // cluster) * cluster, 1, 1)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * warps, fixed + warps * each, chained=new)


def _power_of_two(most: int) -> int:
    """Return the largest power of two up to ``most``: 9 to 13 warps were slower than 8, some idle in the last round.

    Examples
    --------
    >>> [_power_of_two(most) for most in (1, 5, 8, 13, 16)]
    [1, 4, 8, 8, 16]
    """
    return 1 << most.bit_length() - 1


def slot_bytes(most: int) -> int:
    """Return the bytes of a slot: bits, values, and a row that is read but not used."""
    return _BITS + most * 2 + 128
