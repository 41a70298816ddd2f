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
    tokens: int, rows: int, cols: int, v: int, m: int, capability: tuple[int, int], element: int, activation: int
) -> Launch:
    """Return the launch of ``vnm_few`` for up to 16 tokens, whose lines start at multiples of 16 bytes."""
    new = capability >= (9, 0)
    sets = 4 if v % 64 else 1
    blocks = -(-rows // 64)
    cluster = 2 if new and sets == 1 and blocks < _FULL else 1
    tiles = 1 if tokens <= 8 else 2
    warps, depth = (8, 2) if new else (4, 1)
    pieces = warps * depth
    columns = (2 if sets == 1 else sets) * tiles * 8 * 144  # of x, for a warp: two buffers, or four lists
    shared = max(pieces * 4608 + warps * columns + pieces * 8, warps * tiles * 2048)
    gather = 0 if m == 4 else 2 if m == 8 and sets == 1 and cols % 8 == 0 else 1
    macros = {
        "ELEMENT": element, "NT": tiles, "WARPS": warps, "DEPTH": depth, "CLUSTER": cluster, "SETS": sets,
        "GATHER": gather, "ACT": activation,
    }  # fmt: skip
    return Launch("vnm_few.cu", "vnm_few", macros, (blocks * cluster, 1, 1), 32 * warps, shared)


#: Warpgroups by rows and by tokens, times 64 rows and tokens of each, feeding threads, stages.
_TALL = (2, 1, 2, 128, 256, 6)  # 256 rows x 128 tokens
_WIDE = (2, 1, 1, 256, 128, 5)  # 128 x 256
_FLAT = (1, 2, 1, 128, 256, 5)  # 64 x 256
_SMALL = (2, 1, 1, 128, 256, 8)  # 128 x 128


def many(
    tokens: int, rows: int, steps: int, v: int, m: int, order: tuple[bool, bool], element: int, activation: int,
    processors: int,
) -> Launch | None:  # fmt: skip
    """Return the launch of ``vnm_many``, or None if its lists don't fit into shared memory.

    ``order``: are x and the result token-major? Of x only where m is 4.
    """
    shape = _TALL if v % 256 == 0 else _WIDE if v % 128 == 0 else _FLAT
    if v % 128 == 0 and -(-rows // _rows(_SMALL)) * -(-tokens // _tokens(_SMALL)) <= processors:
        shape = _SMALL  # one wave of smaller tiles uses more of the GPU
    wm, wn, mt, nb, feeders, stages = shape
    high, broad = _rows(shape), _tokens(shape)
    gather = m != 4
    while stages >= 3:
        shared = stages * (broad * 128 + high * 72) + 16 * stages + (steps * 64 if gather else 0)
        if shared <= _SHARED:
            break
        stages -= 1
    else:
        return None
    macros = {
        "ELEMENT": element, "WM": wm, "WN": wn, "MT": mt, "NB": nb, "FEEDERS": feeders, "STAGES": stages,
        "GATHER": int(gather), "X_TOKENS": int(order[0]), "Y_TOKENS": int(order[1]), "ACT": activation,
    }  # fmt: skip
    tiles = (-(-rows // high), -(-tokens // broad))
    grid = (min(tiles[0] * tiles[1], processors), 1, 1)
    return Launch("vnm_many.cu", "vnm_many", macros, grid, feeders + 256, shared, tiles)


def _rows(shape: tuple[int, ...]) -> int:
    return 64 * shape[2] * shape[0]


def _tokens(shape: tuple[int, ...]) -> int:
    return shape[3] * shape[1]


def sharing(v: int) -> int:
    """Return how many rows share columns, as the kernels take it."""
    return v or _ALL
