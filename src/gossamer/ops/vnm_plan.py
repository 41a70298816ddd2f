"""Which kernel multiplies a packed V:N:M weight, and how it is configured: pure functions of sizes, type and GPU.

A **plan** is one of

- ``few``: ``mma.sp``, from compute capability 8.0 on, v a multiple of 16; 16 tokens a launch; bound by memory,
- ``many``: ``wgmma.sp``, compute capability 9.0, v a multiple of 64,
- ``any``: plain threads; any v, strides, type and GPU,
- ``dense``: decoded into a dense scratch, then cuBLAS: what is right, and never far from dense, for everything else.

"All rows" is v = 0 here, and 2:4 always is, since it shares nothing.
"""

from __future__ import annotations

from typing import NamedTuple

#: Up to so many tokens ``few`` is faster than ``many``.
FEW_TOKENS = 16
#: Up to so many tokens several launches of ``few`` are faster than a decoded copy, where ``many`` can't run.
FEW_TOKENS_ALONE = 512
#: Up to so many tokens plain threads are faster than a decoded copy.
ANY_TOKENS = 16
#: Tokens of one launch of ``few``.
FEW_LAUNCH = 16
#: Blocks of 64 rows that fill a GPU: with fewer, two blocks of threads share the columns.
_FULL = 192
_SHARED = 232448  # bytes that a block may have on compute capability 9.0
_ALL = 1 << 30


class Launch(NamedTuple):
    """A kernel, its macros, and the shape of its launch."""

    source: str
    name: str
    macros: dict[str, int]
    grid: tuple[int, int, int]
    threads: int
    shared: int  # bytes
    tiles: tuple[int, int] = (0, 0)  # of rows and of tokens
    chained: bool = False  # set up while the kernel before it still runs
    broad: int = 0  # tokens of a tile


def choose(tokens: int, half: bool, v: int, capability: tuple[int, int]) -> str:
    """Return the plan for a call: few, many, any or dense.

    Examples
    --------
    >>> [choose(n, True, 0, (9, 0)) for n in (1, 16, 17, 4096)]
    ['few', 'few', 'many', 'many']
    >>> choose(4096, True, 0, (8, 0)), choose(8, True, 3, (9, 0)), choose(100, False, 0, (9, 0))
    ('dense', 'any', 'dense')
    """
    if half and capability >= (8, 0) and v % 16 == 0:
        many = capability == (9, 0) and v % 64 == 0
        if tokens <= (FEW_TOKENS if many else FEW_TOKENS_ALONE):
            return "few"
        if many:
            return "many"
    return "any" if tokens <= ANY_TOKENS else "dense"


def few(
    tokens: int, rows: int, cols: int, v: int, m: int, capability: tuple[int, int], element: int, activation: int,
) -> Launch:  # fmt: skip
    """Return the launch of ``vnm_few`` for up to 16 tokens, whose lines start at multiples of 16 bytes."""
    new = capability >= (9, 0)
    tiles, sets = 1 if tokens <= 8 else 2, 4 if v % 64 else 1
    gather = 0 if m == 4 else 1 + m // 8 if m % 8 == 0 and m <= 32 and cols % 8 == 0 else 1
    full = rows > 64 * _FULL
    high = 2 if full and tiles == 2 and v % 128 == 0 and m != 8 else 1  # blocks of 64 rows that share x
    blocks = -(-rows // (64 * high))
    cluster = 2 if new and sets == 1 and not full else 1
    warps = 8 if new and sets == 1 else 4
    depth = 2 if new and (m == 8 if not full else m == 4 or (m == 8 and tiles == 1)) else 1
    # set up early, two blocks of a small grid may share a processor: too much where gathering binds
    chained = new and (full or m != 8)
    ring = warps * depth * high * 4608 if new else 0
    columns = (2 if sets == 1 and gather <= 2 else sets) * tiles * 8 * 144  # of x, for a warp: two buffers or all lists
    sums = warps * tiles * 8 * (64 * high + 4) * 4
    shared = max(ring + warps * columns + 8 * warps * depth, sums)
    macros = {
        "ELEMENT": element, "NT": tiles, "RT": high, "WARPS": warps, "DEPTH": depth, "CLUSTER": cluster, "SETS": sets,
        "GATHER": gather, "ACT": activation,
    }  # fmt: skip
    return Launch("vnm_few.cu", "vnm_few", macros, (blocks * cluster, 1, 1), 32 * warps, shared, chained=chained)


#: Warpgroups by rows and by tokens, times 64 rows and tokens of each, feeding threads, stages, blocks of results.
Shape = tuple[int, int, int, int, int, int, int]
_MIXED: Shape = (3, 1, 1, 256, 128, 4, 1)  # 128 or 192 rows x 256 tokens
_TALL: Shape = (2, 1, 2, 128, 256, 5, 2)  # 256 x 128
_WIDE: Shape = (2, 1, 1, 256, 128, 4, 2)  # 128 x 256
_FLAT: Shape = (1, 2, 1, 128, 256, 5, 2)  # 64 x 256
_SMALL: Shape = (2, 1, 1, 128, 256, 6, 2)  # 128 x 128
#: Cycles of a step of 64 compacted columns, where m = 4 and where columns are gathered, by what was measured. Gathering
#: takes threads that three multiplying warpgroups leave no registers for. Mixed: of 192 rows; of 192, 192 and 128 3330.
_CYCLES = {_MIXED: (1230, None), _TALL: (928, 928), _WIDE: (870, 960), _SMALL: (590, 590), _FLAT: (930, 930)}


def many(
    tokens: int, rows: int, steps: int, v: int, m: int, order: tuple[bool, bool], element: int, activation: int,
    processors: int,
) -> Launch | None:  # fmt: skip
    """Return the launch of ``vnm_many``, or None if its lists don't fit into shared memory.

    ``order``: are x and the result token-major? Of x only where m is 4.
    """
    lists = steps * 64 if m != 4 else 0
    for shape in _shapes(tokens, rows, v, m, processors):
        wm, wn, mt, nb, feeders, most, out = shape
        feeders = feeders if m != 4 else 128  # of whom one asks the copy engine
        out = 0 if order[1] and rows % 8 else out  # the copy engine wants lines of whole 16 bytes
        rest, stage = lists + wm * wn * out * 8192, nb * wn * 128 + 64 * mt * wm * 72 + 16
        stages = min(most, (_SHARED - rest) // stage)
        if stages >= 3:
            break
    else:
        return None
    macros = {
        "ELEMENT": element, "WM": wm, "WN": wn, "MT": mt, "NB": min(nb, 128) if wm == 3 else nb, "FEEDERS": feeders,
        "STAGES": stages, "OUT": out, "GATHER": int(m != 4), "X_TOKENS": int(order[0]), "Y_TOKENS": int(order[1]),
        "ACT": activation,
    }  # fmt: skip
    tiles = _tiles(shape, rows, tokens)
    grid = (_blocks(tiles, processors), 1, 1)
    threads = feeders + 128 * wm * wn
    return Launch("vnm_many.cu", "vnm_many", macros, grid, threads, stages * stage + rest, tiles, True, nb * wn)


def _shapes(tokens: int, rows: int, v: int, m: int, processors: int) -> list[Shape]:
    """Return shapes of tiles whose rows share columns, that whose waves take the fewest cycles first."""

    def cycles(shape: Shape) -> int:
        (down, across), each = _tiles(shape, rows, tokens), _CYCLES[shape][m != 4] or 0
        waves = -(-down * across // processors)
        return waves // 3 * 3330 + waves % 3 * each if shape is _MIXED else waves * each

    fit = [shape for shape in _CYCLES if _CYCLES[shape][m != 4] and v % (64 * shape[2] * shape[0]) == 0]
    return sorted(fit, key=cycles)


def _tiles(shape: Shape, rows: int, tokens: int) -> tuple[int, int]:
    """Return how many tiles there are, of rows and of tokens."""
    wm, wn, mt, nb, *_ = shape
    blocks = -(-rows // 64)
    across = -(-tokens // (nb * wn))
    if shape is not _MIXED:
        return -(-blocks // (wm * mt)), across
    whole, left = divmod(blocks, 8)  # 8 blocks of 64 rows are tiles of 2, 3 and 3
    return 3 * whole + (left > 0) + (left > 2) + (left > 5), across


def _blocks(tiles: tuple[int, int], processors: int) -> int:
    """Return how many blocks of threads take the tiles: no more than the last wave needs, which saves power and lists."""
    all = tiles[0] * tiles[1]
    return -(-all // -(-all // processors))


def sharing(v: int) -> int:
    """Return how many rows share columns, as the kernels take it."""
    return v or _ALL
