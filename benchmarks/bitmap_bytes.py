"""Bytes of packed bitmaps, of those of a dense float16 matrix: the table in formats/levels/pieces.py.

python benchmarks/bitmap_bytes.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "src")]

import torch  # noqa: E402

from gossamer.formats.levels import pieces  # noqa: E402

PIECES = 1500


def main() -> None:
    torch.manual_seed(0)
    for percent in (50, 60, 70, 80, 90):
        groups = pieces._groups(torch.rand(PIECES * pieces.PIECE) * 100 >= percent)
        table = pieces._table(groups.device)
        halves = (2 * table.words + table.singles)[groups.long()].sum() / PIECES
        shares = [f"without padding {share(2 * float(halves)):.3f}"]
        for swaps in (0, 4, 16):
            with patch.object(pieces, "_SWAPS", swaps):
                rows = pieces._streams(groups).rows.double().mean()
            shares.append(f"{swaps} swaps {share(2 * pieces.ALIGN * float(rows)):.3f}")
        print(f"{percent} %: {', '.join(shares)}")


def share(values: float) -> float:
    """Codes and values of a piece, of its dense bytes."""
    return (4 * pieces.WORDS + values) / (2 * pieces.PIECE)


if __name__ == "__main__":
    main()
