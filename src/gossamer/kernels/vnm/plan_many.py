"""How ``vnm_many`` is configured: tiles, stages, and the shape of its launch. Pure functions of sizes, type and GPU."""

from __future__ import annotations

from gossamer.kernels.vnm.plan import SHARED, Launch, lines_of

#: Warpgroups by rows and by tokens, times 64 rows and tokens of each, feeding threads, stages, blocks of results.
Shape = tuple[int, int, int, int, int, int, int]
_MIXED: Shape = (3, 1, 1, 256, 128, 4, 1)  # 128 or 192 rows x 256 tokens
_TALL: Shape = (2, 1, 2, 128, 256, 5, 2)  # 256 x 128
_WIDE: Shape = (2, 1, 1, 256, 128, 4, 2)  # 128 x 256
_FLAT: Shape = (1, 2, 1, 128, 256, 5, 2)  # 64 x 256
_SMALL: Shape = (2, 1, 1, 128, 256, 7, 2)  # 128 x 128
_NARROW: Shape = (2, 1, 1, 64, 128, 8, 2)  # 128 x 64
#: Cycles of a step of 64 compacted columns, where m = 4 and where columns are gathered, by what was measured. Gathering
#: takes threads that three multiplying warpgroups leave no registers for. Mixed: of 192 rows; of 192, 192 and 128 3330.
#: Narrow tiles are for gathered columns: without, there is ``vnm_some``.
_CYCLES = {
    _MIXED: (1230, None), _TALL: (928, 928), _WIDE: (870, 960), _SMALL: (590, 590), _FLAT: (930, 930),
    _NARROW: (None, 400),
}  # fmt: skip
#: The same for operands of 8 bits, where three warpgroups were slower than two.
_CYCLES_8BIT = {_WIDE: (870, None), _TALL: (928, None), _SMALL: (590, None), _FLAT: (930, None)}


def many(
    tokens: int, rows: int, steps: int, v: int, m: int, order: tuple[bool, bool], element: int, activation: int,
    processors: int, weight: int = 0, gated: bool = False,
) -> Launch | None:  # fmt: skip
    """Return the launch of ``vnm_many``, or None if its lists don't fit into shared memory.

    ``order``: are x and the result token-major? Of x only where m is 4. ``weight``: 0 operands of 16 bits, 1 e4m3, 2
    int8. ``gated``: there are two weights of these rows, whose results are multiplied: m is 4, and all is token-major.
    """
    lists = steps * 64 if m != 4 else 0
    for shape in [_TALL] if gated else _shapes(tokens, rows, v, m, processors, weight):
        wm, wn, mt, nb, feeders, most, out = shape
        feeders = feeders if m != 4 else 128  # of whom one asks the copy engine
        out = 0 if order[1] and rows % 8 else out  # the copy engine wants lines of whole 16 bytes
        rest, stage = lists + wm * wn * out * 8192, nb * wn * 128 + 64 * mt * wm * (80 if weight else 72) + 16
        stages = min(most, (SHARED - rest) // stage)
        if stages >= 3:
            break
    else:
        return None
    macros = {
        "ELEMENT": element, "WEIGHT": weight, "WM": wm, "WN": wn, "MT": mt, "NB": 128 if wm == 3 else nb,
        "FEEDERS": feeders, "STAGES": stages, "OUT": out, "BOX": 16 if out == 1 and not order[1] else 64,
        "GATHER": int(m != 4), "X_TOKENS": int(order[0]), "Y_TOKENS": int(order[1]), "ACT": activation,
    }  # fmt: skip
    if gated:
        macros["GATED"] = 1
    tiles = _tiles(shape, 2 * rows if gated else rows, tokens)
    grid = (_blocks(tiles, processors), 1, 1)
    threads = feeders + 128 * wm * wn
    lines = lines_of(tokens, nb * wn) if order[0] else 64
    return Launch("vnm_many.cu", "vnm_many", macros, grid, threads, stages * stage + rest, tiles, True, lines)


def _shapes(tokens: int, rows: int, v: int, m: int, processors: int, weight: int) -> list[Shape]:
    """Return shapes of tiles whose rows share columns, that whose waves take the fewest cycles first."""
    known = _CYCLES_8BIT if weight else _CYCLES

    def cycles(shape: Shape) -> int:
        (down, across), each = _tiles(shape, rows, tokens), known[shape][m != 4] or 0
        waves = -(-down * across // processors)
        return waves // 3 * 3330 + waves % 3 * each if shape is _MIXED else waves * each

    fit = [shape for shape in known if known[shape][m != 4] and v % (64 * shape[2] * shape[0]) == 0]
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
