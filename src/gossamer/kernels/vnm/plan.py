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


def plain(tokens: int, rows: int) -> Launch:
    """Return the launch of ``vnm_any``."""
    return Launch("vnm_any.cu", "vnm_any", {}, (-(-rows // 128), min(-(-tokens // 4), 65535), 1), 128, 0)


def few(
    tokens: int, rows: int, cols: int, v: int, m: int, capability: tuple[int, int], element: int, activation: int,
    processors: int,
) -> Launch:  # fmt: skip
    """Return the launch of ``vnm_few`` for up to 16 tokens, whose lines start at multiples of 16 bytes."""
    new = capability >= (9, 0)
    tiles, sets = 1 if tokens <= 8 else 2, 4 if v % 64 else 1
    gather = 0 if m == 4 else 1 + m // 8 if m % 8 == 0 and m <= 32 and cols % 8 == 0 else 1
    steps = -(-cols // (16 * m))
    high, cluster, warps = 1, 1, 4
    if new and sets == 1:
        high, cluster, warps = _few_shape(-(-rows // 64), steps, tiles, m, v, processors)
    room = capability[0] in (9, 10)  # of shared memory: that of a GPU for desktops is less than half
    if not room:
        high, warps = 1, min(warps, 8)
    blocks = -(-rows // (64 * high)) * cluster
    alone = room and sets == 1 and (high > 1 or blocks <= processors)
    pieces = warps * (high * 4608 + 8) if new else 0
    columns = sets * tiles * 8 * 144  # of x, for a warp
    sums = warps * tiles * 8 * (64 * high + 4) * 4
    # set up while the kernel before ends, two blocks could share a processor while another has none: no room for two
    shared = max(pieces + warps * columns, sums, _SHARED // 2 + 1024 if alone else 0)
    macros = {
        "ELEMENT": element, "NT": tiles, "RT": high, "WARPS": warps, "CLUSTER": cluster, "SETS": sets,
        "GATHER": gather, "ALONE": int(alone), "ACT": activation,
    }  # fmt: skip
    return Launch("vnm_few.cu", "vnm_few", macros, (blocks, 1, 1), 32 * warps, shared, chained=new)


def _few_shape(blocks: int, steps: int, tiles: int, m: int, v: int, processors: int) -> tuple[int, int, int]:
    """Return blocks of 64 rows of a cluster, blocks of threads in it, and their warps.

    By what was fastest on an H200, for 16 to 224 blocks of 64 rows and 4096 or 14336 columns. More rows for a cluster
    gather x less often, more blocks in it add up more sums.
    """
    if blocks > 128:
        pays = m == 4 or (tiles == 1 if m <= 8 else tiles == 2)  # that 128 rows share what is gathered
        return 2 if pays and v % 128 == 0 else 1, 1, 8
    if blocks > 32:
        return 1, 2, 16 if steps >= 48 and 2 * blocks <= processors else 8
    cluster = 8
    while cluster > 1 and steps < 4 * cluster:
        cluster //= 2
    return 1, cluster, 4


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
        "ELEMENT": element, "WM": wm, "WN": wn, "MT": mt, "NB": 128 if wm == 3 else nb, "FEEDERS": feeders,
        "STAGES": stages, "OUT": out, "BOX": 16 if out == 1 and not order[1] else 64, "GATHER": int(m != 4),
        "X_TOKENS": int(order[0]), "Y_TOKENS": int(order[1]), "ACT": activation,
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
    """Return how many blocks of threads take the tiles: no more than the last wave needs, to save power and lists."""
    all = tiles[0] * tiles[1]
    return -(-all // -(-all // processors))


def sharing(v: int) -> int:
    """Return how many rows share columns, as the kernels take it."""
    return v or _ALL
