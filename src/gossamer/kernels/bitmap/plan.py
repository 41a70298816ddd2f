"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from gossamer.kernels.vnm.plan import SHARED, Launch

#: Tokens of one launch.
TOKENS = 64
_BITS = 768  # bytes of a piece's bits and numbers
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have


def product(
    tokens: int, rows: int, cols: int, most: int, capability: tuple[int, int], element: int, activation: int,
    processors: int,
) -> Launch | None:  # fmt: skip
    """Return the launch for up to 64 tokens, or None if its pieces don't fit into shared memory.

    ``most``: values of a piece, the largest number.
    """
    new = capability >= (9, 0)
    eights = next(n for n in (1, 2, 4, 8) if n * 8 >= tokens)
    slot = _BITS + most * 2 + 16
    blocks, steps = -(-rows // 64), -(-cols // 64)
    sums = eights * 8 * (64 + 4) * 4
    for warps in (8, 4, 2, 1):
        shared = max(warps * (2 * eights * 1024 + 32 + 2 * slot), sums)
        fit = (SHARED if new else _OTHERS) // (shared + 1024)
        if fit:
            break
    else:
        return None
    cluster = 1
    while new and cluster < 8 and 2 * cluster * blocks <= fit * processors and steps >= 4 * warps * cluster:
        cluster *= 2
    macros = {
        "ELEMENT": element, "NT": eights, "RB": 1, "KW": warps, "CLUSTER": cluster, "ALONE": int(fit == 1),
        "ACT": activation,
    }  # fmt: skip
    grid = (blocks * cluster, 1, 1)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * warps, shared, chained=new)
