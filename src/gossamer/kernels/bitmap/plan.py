"""How ``bitmap`` is configured: a pure function of sizes, type and GPU."""

from __future__ import annotations

from gossamer.kernels.vnm.plan import SHARED, Launch

#: Up to this many tokens a bitmap is faster than its dense copy.
TOKENS = 32
_BITS = 768  # bytes of a piece's bits and numbers
_OTHERS = 99 * 1024  # bytes of shared memory that every GPU from 8.0 on lets a block have


def product(
    tokens: int, rows: int, cols: int, most: int, capability: tuple[int, int], element: int, activation: int,
    processors: int,
) -> Launch | None:  # fmt: skip
    """Return the launch for up to 32 tokens, or None if its pieces don't fit into shared memory.

    ``most``: values of a piece, the largest number.
    """
    new = capability >= (9, 0)
    eights = next(n for n in (1, 2, 4) if n * 8 >= tokens)
    blocks, steps = -(-rows // 64), -(-cols // 64)
    warps, cluster = _shape(blocks, steps, processors) if new else (8, 1)
    each = 2 * eights * 1024 + 32 + 2 * (_BITS + most * 2 + 16)  # bytes of shared memory of a warp
    room = SHARED if new else _OTHERS
    while warps > 1 and warps * each > room:
        warps //= 2
    shared = max(warps * each, eights * 8 * (64 + 4) * 4)
    if shared > room:
        return None
    alone = warps > 8 or room < 2 * (shared + 1024)
    if new and alone:  # set up while the kernel before ends, two could share a processor while another has none
        shared = max(shared, SHARED // 2 + 1024)
    macros = {
        "ELEMENT": element, "NT": eights, "RB": 1, "KW": warps, "CLUSTER": cluster, "ALONE": int(alone),
        "ACT": activation,
    }  # fmt: skip
    grid = (blocks * cluster, 1, 1)
    return Launch("bitmap.cu", "bitmap", macros, grid, 32 * warps, shared, chained=new)


def _shape(blocks: int, steps: int, processors: int) -> tuple[int, int]:
    """Return the warps that share the columns of 64 rows, and the blocks of threads of a cluster that do.

    By what was fastest on an H200: 16 warps a processor. Clusters of 4 and 8 don't fill its processors.
    """
    if blocks > processors:
        return 8, 1
    warps = 16 if 2 * blocks <= processors else 8
    return warps, 2 if steps >= 4 * warps else 1
