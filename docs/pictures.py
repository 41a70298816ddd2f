"""Draw every pattern and every format for docs/explanation/pictures.md.

    python docs/pictures.py       writes docs/explanation/figures/pattern-*.svg and format-*.svg

Masks are selected, and places in memory read out, by gossamer itself, so a picture can't disagree with the code.
"""

from __future__ import annotations

from pathlib import Path

import torch

import gossamer as gs
from gossamer.formats import Condensed, PackedCSR, PackedGroupedNM, PackedNM
from gossamer.patterns import as_pattern

FIGURES = Path(__file__).parent / "explanation" / "figures"
CELL = 9
#: Name, pattern, and the guide lines: every so many rows and columns.
PATTERNS = {
    "unstructured": ("75%", 0, 0),
    "per-row": ("75% per row", 1, 0),
    "threshold": ("> 1.15", 0, 0),
    "blocks": ("block 4x4 75%", 4, 4),
    "nm": ("2:4", 0, 4),
    "transposable-nm": ("2:4 transposable", 4, 4),
    "grouped-nm": ("1:4:g2", 8, 4),
    "fan-in": ("fan-in k=8", 1, 0),
    "vnm": ("8:2:8", 8, 8),
    "keep-all": ("keep all", 0, 0),
}
#: Name, format, and the pattern that it is drawn with.
FORMATS = {
    "masked": (gs.Masked(), "75%"),
    "coo": (gs.COO(), "75%"),
    "csr": (gs.CSR(), "75%"),
    "csc": (gs.CSC(), "75%"),
    "dcsr": (gs.DCSR(), "75%"),
    "csf": (gs.CSF(), "75%"),
    "bsr": (gs.BSR((4, 4)), "block 4x4 75%"),
    "ell": (gs.ELL(), "75%"),
    "packed-csr": (PackedCSR(16), "75%"),
    "condensed": (Condensed(), "fan-in k=8"),
    "packed-nm": (PackedNM(1, 4), "1:4"),
    "packed-grouped-nm": (PackedGroupedNM(1, 4, 2), "1:4:g2"),
}


def scores(rows: int, columns: int) -> torch.Tensor:
    """Return the same random numbers every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def frame(rows: int, columns: int, label: str, inside: list[str], by_rows: int = 0, by_columns: int = 0) -> str:
    """Return a drawing with its border and guide lines."""
    width, height = columns * CELL, rows * CELL
    box = f'viewBox="-1 -1 {width + 2} {height + 2}" width="{width}"'
    out = [f'<svg class="picture" {box} role="img" aria-label="{label}">', *inside]
    lines = [f"M0 {y * CELL}h{width}" for y in range(by_rows, rows, by_rows or rows)] if by_rows > 1 else []
    lines += [f"M{x * CELL} 0v{height}" for x in range(by_columns, columns, by_columns)] if by_columns > 1 else []
    if lines:
        out.append(f'<path class="guide" d="{"".join(lines)}"/>')
    return "\n".join([*out, f'<path class="border" d="M0 0h{width}v{height}h-{width}z"/>', "</svg>", ""])


def cells(places: list[tuple[int, int]]) -> str:
    """Return the path of cells at (row, column)."""
    return "".join(f"M{x * CELL + 1} {y * CELL + 1}h{CELL - 2}v{CELL - 2}h-{CELL - 2}z" for y, x in places)


def pattern(how: str, by_rows: int, by_columns: int) -> str:
    """Draw the mask that a pattern selects."""
    mask = as_pattern(how).select(scores(16, 32))
    kept = cells([(int(y), int(x)) for y, x in mask.nonzero()])
    return frame(16, 32, f"the pattern {how}", [f'<path class="kept" d="{kept}"/>'], by_rows, by_columns)


def memory(format: gs.Format, how: str, shades: int = 8) -> str:
    """Draw where values lie in memory: the darker, the later."""
    t = gs.sparsify(scores(32, 32), how, format=format)
    places = [divmod(key, 32) for key in t.structure.entries().keys.tolist()]  # in the order of storage
    inside = []
    for shade in range(shades):
        part = places[len(places) * shade // shades : len(places) * (shade + 1) // shades]
        inside.append(f'<path class="kept" opacity="{0.2 + 0.8 * shade / (shades - 1):.2f}" d="{cells(part)}"/>')
    return frame(32, 32, f"where {format!r} keeps the values in memory", inside)


def main() -> None:
    """Write all pictures."""
    FIGURES.mkdir(exist_ok=True)
    for name, (how, by_rows, by_columns) in PATTERNS.items():
        (FIGURES / f"pattern-{name}.svg").write_text(pattern(how, by_rows, by_columns), encoding="utf-8")
    for name, (format, how) in FORMATS.items():
        (FIGURES / f"format-{name}.svg").write_text(memory(format, how), encoding="utf-8")


if __name__ == "__main__":
    main()
