"""Which kernel multiplies a packed V:N:M weight, and how it is configured: pure functions of sizes, type and GPU.

A **plan** is one of

- ``few``: ``mma.sp``, from compute capability 8.0 on, v a multiple of 16; 16 tokens a launch; bound by memory,
- ``some``: ``wgmma.sp``, compute capability 9.0, token-major activations, all rows share columns; bound by memory,
- ``many``: ``wgmma.sp``, compute capability 9.0, v a multiple of 64 (:mod:`gossamer.kernels.vnm.plan_many`),
- ``any``: plain threads; any v, strides, type and GPU,
- ``dense``: decoded into a dense scratch, then cuBLAS: what is right, and never far from dense, for everything else.

"All rows" is v = 0 here, and 2:4 always is, since it shares nothing.
"""

from __future__ import annotations

from typing import NamedTuple

#: Up to this many tokens ``few`` is faster than ``some``, which needs another kernel first where m is not 4.
FEW_TOKENS = 8
#: Up to this many tokens ``few`` is faster than ``many``, where ``some`` can't run.
FEW_TOKENS_SHARED = 16
#: Up to this many tokens several launches of ``few`` are faster than a decoded copy, where ``many`` can't run.
FEW_TOKENS_ALONE = 512
#: Up to this many tokens ``some`` is faster than ``many``: in general, and for layers that have at most as many blocks
#: of 64 rows as there are processors, or half as many.
SOME_TOKENS = (64, 256, 512)
#: Up to this many tokens plain threads are faster than a decoded copy.
ANY_TOKENS = 16
#: Tokens of one launch of ``few``.
FEW_LAUNCH = 16
SHARED = 232448  # bytes that a block may have on compute capability 9.0
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
    lines: int = 0  # tokens of a box that the copy engine brings


def choose(
    tokens: int, rows: int, half: bool, v: int, m: int, capability: tuple[int, int], processors: int,
    token_major: bool = True,
) -> str:  # fmt: skip
    """Return the plan for a call: few, some, many, any or dense.

    Examples
    --------
    >>> [choose(n, 14336, True, 0, 8, (9, 0), 132) for n in (1, 8, 9, 64, 65, 4096)]
    ['few', 'few', 'some', 'some', 'many', 'many']
    >>> choose(4096, 64, True, 0, 4, (8, 0), 108), choose(8, 64, True, 3, 8, (9, 0), 132)
    ('dense', 'any')
    """
    if half and capability >= (8, 0) and v % 16 == 0:
        hopper = capability == (9, 0)
        if hopper and v == 0 and token_major:
            if m != 4 and tokens <= FEW_TOKENS:
                return "few"
            return "some" if tokens <= most_of_some(rows, processors) else "many"
        many = hopper and v % 64 == 0
        if tokens <= (FEW_TOKENS_SHARED if many else FEW_TOKENS_ALONE):
            return "few"
        if many:
            return "many"
    return "any" if tokens <= ANY_TOKENS else "dense"


def most_of_some(rows: int, processors: int) -> int:
    """Return up to how many tokens ``some`` is faster than ``many``, whose tiles of few rows don't fill the GPU."""
    blocks = -(-rows // 64)
    return SOME_TOKENS[(blocks <= processors) + (2 * blocks <= processors)]


def plain(tokens: int, rows: int) -> Launch:
    """Return the launch of ``vnm_any``."""
    return Launch("vnm_any.cu", "vnm_any", {}, (-(-rows // 128), min(-(-tokens // 4), 65535), 1), 128, 0)


def few(
    tokens: int, rows: int, cols: int, v: int, m: int, capability: tuple[int, int], element: int, activation: int,
    processors: int, weight: int = 0,
) -> Launch:  # fmt: skip
    """Return the launch of ``vnm_few`` for up to 16 tokens, whose lines start at multiples of 16 bytes.

    ``weight``: 0 of 16 bits, 1 e4m3, 3 int4.
    """
    new = capability >= (9, 0)
    tiles, sets = 1 if tokens <= 8 else 2, 4 if v % 64 else 1
    gather = 0 if m == 4 else 1 + m // 8 if m % 8 == 0 and m <= 32 and cols % 8 == 0 else 1
    steps = -(-cols // (16 * m))
    high, cluster, warps = 1, 1, 4
    if new and sets == 1:
        high, cluster, warps = _few_shape(-(-rows // 64), steps, tiles, m, v, processors)
        if weight and cluster <= 2 and (tiles == 1 or m == 4):  # fewer bytes, and instructions to widen them
            warps = 16
    room = capability[0] in (9, 10)  # of shared memory: that of a GPU for desktops is less than half
    if not room:
        high, warps = 1, min(warps, 8)
    blocks = -(-rows // (64 * high)) * cluster
    alone = room and sets == 1 and (high > 1 or blocks <= processors)
    piece = high * ({0: 4096, 1: 2048, 3: 1152}[weight] + 512)  # bytes
    pieces = warps * (piece + 8) if new else 0
    columns = sets * tiles * 8 * 144  # of x, for a warp
    sums = warps * tiles * 8 * (64 * high + 4) * 4
    # set up while the kernel before ends, two blocks could share a processor while another has none: no room for two
    shared = max(pieces + warps * columns, sums, SHARED // 2 + 1024 if alone else 0)
    macros = {
        "ELEMENT": element, "WEIGHT": weight, "NT": tiles, "RT": high, "WARPS": warps, "CLUSTER": cluster, "SETS": sets,
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
    while cluster > 1 and (steps < 4 * cluster or _scattered(blocks, cluster, processors)):
        cluster //= 2
    return 1, cluster, 4


def _scattered(tiles: int, cluster: int, processors: int) -> bool:
    """Would clusters leave processors unused, so that some of them must wait for others?

    The blocks of a cluster share one of the GPU's groups of processors, which have no common size. On an H200 28
    clusters of 4 do not run at once; 24 do. Pairs always fit.
    """
    return cluster > 2 and 3 * processors < 4 * tiles * cluster <= 4 * processors


def some(
    tokens: int, rows: int, steps: int, element: int, activation: int, processors: int, weight: int = 0,
    ahead: bool = False, group: bool = False, gated: bool = False,
) -> Launch:  # fmt: skip
    """Return the launch of ``vnm_some``.

    ``steps``: of 64 compacted columns, or of 128 for operands of 8 bits. ``weight``: 0 operands of 16 bits, 1 e4m3, 2
    int8. ``ahead``: the kernel before this one compacts or quantizes x, and waits for all before it. ``group``: these
    are the rows of several weights. ``gated``: of each of two, whose results are multiplied.
    """
    broad = next((n for n in (8, 16, 32, 64, 96, 128) if n >= tokens), 128)
    blocks, across = -(-rows // 64), -(-tokens // broad)
    if gated:
        high, parts, cluster = 2, 1, _some_cluster(blocks * across, steps, processors)
    else:
        high, parts, cluster = _some_shape(blocks * across, steps, broad, processors)
    launch = _some_launch((high, parts, cluster), broad, steps, element, activation, weight)
    if ahead:
        launch.macros["AHEAD"] = 4 if high == 2 else 8
    if group:
        launch.macros["GROUP"] = 1
    if gated:
        launch.macros["GATED"] = 1
    tiles = (blocks if gated else -(-blocks // high), across)
    return launch._replace(grid=(tiles[0] * cluster, across, 1), tiles=tiles, lines=lines_of(tokens, broad))


def experts(tokens: int, count: int, rows: int, steps: int, element: int, processors: int, weight: int = 0) -> Launch:
    """Return the launch of ``vnm_some`` for ``count`` experts of ``rows`` rows each, and tokens that are divided among
    them as the GPU will find. ``steps`` and ``weight`` are as in :func:`some`.

    A launch has blocks for the most parts there can be. Its shape suits tokens that are divided evenly.
    """
    busy = min(count, tokens)
    broad = next((n for n in (8, 16, 32, 64, 96, 128) if 2 * n * busy >= 3 * tokens), 128)
    blocks, parts = rows // 64, busy + tokens // broad
    high, halves, cluster = _some_shape(blocks * max(busy, tokens // broad), steps, broad, processors)
    high = high if blocks % high == 0 else 1
    launch = _some_launch((high, halves, cluster), broad, steps, element, 0, weight)
    launch.macros["EXPERTS"] = 1
    grid, tiles = (blocks // high * cluster, parts, 1), (blocks // high, parts)
    return launch._replace(grid=grid, tiles=tiles, lines=min(broad, 32))


def _some_launch(
    shape: tuple[int, int, int], broad: int, steps: int, element: int, activation: int, weight: int
) -> Launch:
    """Return the launch of ``vnm_some`` for tiles of a shape and ``broad`` tokens; its grid is still to be set."""
    high, parts, cluster = shape
    stage = broad * 128 + high * (4096 + (1024 if weight else 512)) + 16
    most = 8 if high == 2 else 16
    stages = max(min(most, SHARED // stage, -(-steps // cluster)) // 4 * 4, 4)
    sums = parts * broad * (64 * high + 4) * 4
    # set up while the kernel before ends, two blocks could share a processor while another has none: no room for two
    shared = max(stages * stage, sums, SHARED // 2 + 1024)
    macros = {
        "ELEMENT": element, "WEIGHT": weight, "WM": high, "WK": parts, "NB": broad, "STAGES": stages,
        "CLUSTER": cluster, "AHEAD": 0, "ACT": activation, "FEEDERS": 128, "WN": 1, "MT": 1, "OUT": 0, "GATHER": 0,
        "X_TOKENS": 1,
    }  # fmt: skip
    return Launch("vnm_some.cu", "vnm_some", macros, (0, 0, 0), 128 + 128 * high * parts, shared, chained=True)


def _some_shape(tiles: int, steps: int, broad: int, processors: int) -> tuple[int, int, int]:
    """Return blocks of 64 rows of a block of threads, warpgroups that share their columns, and blocks of a cluster."""
    if tiles > processors:
        return 2, 1, 1
    cluster = _some_cluster(tiles, steps, processors)
    return 1, 2 if steps >= 2 * cluster and broad <= (64 if cluster == 1 else 32) else 1, cluster


def _some_cluster(tiles: int, steps: int, processors: int) -> int:
    """Return how many blocks of threads share the columns of a tile: as many as there are processors for."""
    fit = (n for n in (8, 4, 3, 2) if n * tiles <= processors and not _scattered(tiles, n, processors))
    return next((n for n in fit if steps >= 12 * n), 1)


def quantize(
    tokens: int, cols: int, m: int, steps: int, element: int, weight: int, processors: int, wide: bool = False
) -> Launch:
    """Return the launch of ``quantize``: a block for each token.

    ``weight``: 1 e4m3, 2 int8. ``wide``: what was rounded to e4m3 is written in float16.
    """
    eights = steps * 16
    if m == 4:
        warps = next((n for n in (8, 16) if eights <= 128 * n), 32)
    elif tokens <= processors:  # a block waits for all columns of its token
        warps = next((n for n in (8, 16) if cols <= 256 * n), 32)
    else:
        warps = next((n for n in (4, 8, 16) if eights <= 64 * n), 32)
    macros = {
        "ELEMENT": element, "WEIGHT": weight, "WARPS": warps, "EACH": -(-eights // (32 * warps)), "GATHER": int(m != 4),
    }  # fmt: skip
    if wide:
        macros["WIDE"] = 1
    shared = 128 + (-(-cols // 8) * 16 if m != 4 else 0)
    return Launch("quantize.cu", "quantize", macros, (tokens, 1, 1), 32 * warps, shared, chained=True)


def lines_of(tokens: int, broad: int) -> int:
    """Return the tokens of a box of a tile of ``broad`` tokens: boxes that reach beyond x are slow.

    Examples
    --------
    >>> lines_of(31, 32), lines_of(4096, 256), lines_of(300, 256)
    (31, 256, 64)
    """
    return tokens if tokens <= broad else broad if tokens % broad == 0 else min(64, broad)


def sharing(v: int) -> int:
    """Return how many rows share columns, as the kernels take it."""
    return v or _ALL
