"""Draw every pattern and every format for docs/explanation/pictures.md.

    python docs/pictures.py       writes docs/explanation/figures/pattern-*.svg and format-*.svg

Masks are selected, and places in memory read out, by gossamer itself, so a picture can't disagree with the code.
"""

from __future__ import annotations

from collections.abc import Sequence
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
#: Name, format, the pattern that it is drawn with, and the shape if it is not a matrix.
FORMATS: dict[str, tuple[gs.Format, str, tuple[int, ...]]] = {
    "masked": (gs.Masked(), "75%", (32, 32)),
    "coo": (gs.COO(), "75%", (32, 32)),
    "csr": (gs.CSR(), "75%", (32, 32)),
    "csc": (gs.CSC(), "75%", (32, 32)),
    "dcsr": (gs.DCSR(), "75%", (32, 32)),
    "csf": (gs.CSF(), "75%", (4, 8, 32)),
    "bsr": (gs.BSR((4, 4)), "block 4x4 75%", (32, 32)),
    "ell": (gs.ELL(), "75%", (32, 32)),
    "packed-csr": (PackedCSR(16), "75%", (32, 32)),
    "condensed": (Condensed(), "fan-in k=8", (32, 32)),
    "packed-nm": (PackedNM(1, 4), "1:4", (32, 32)),
    "packed-grouped-nm": (PackedGroupedNM(1, 4, 2), "1:4:g2", (32, 32)),
}


def scores(rows: int, columns: int) -> torch.Tensor:
    """Return the same random numbers every time."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(3))


def frame(
    rows: int,
    columns: int,
    label: str,
    inside: list[str],
    by_rows: int = 0,
    by_columns: int = 0,
    extra: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return a drawing with its border and guide lines, and what is below it."""
    width, height = columns * CELL, rows * CELL
    below = 8 + 29 * sum(line.startswith("<text") for line in extra) if extra else 0
    box = f'viewBox="-1 -1 {width + 2} {height + below + 2}" width="{width}"'
    out = [f'<svg class="picture" {box} role="img" aria-label="{label}">', *inside]
    lines = [f"M0 {y * CELL}h{width}" for y in range(by_rows, rows, by_rows or rows)] if by_rows > 1 else []
    lines += [f"M{x * CELL} 0v{height}" for x in range(by_columns, columns, by_columns)] if by_columns > 1 else []
    if lines:
        out.append(f'<path class="guide" d="{"".join(lines)}"/>')
    return "\n".join([*out, f'<path class="border" d="M0 0h{width}v{height}h-{width}z"/>', *extra, "</svg>", ""])


def cells(places: list[tuple[int, int]]) -> str:
    """Return the path of cells at (row, column)."""
    return "".join(f"M{x * CELL + 1} {y * CELL + 1}h{CELL - 2}v{CELL - 2}h-{CELL - 2}z" for y, x in places)


def pattern(how: str, by_rows: int, by_columns: int) -> str:
    """Draw the mask that a pattern selects."""
    mask = as_pattern(how).select(scores(16, 32))
    kept = cells([(int(y), int(x)) for y, x in mask.nonzero()])
    return frame(16, 32, f"the pattern {how}", [f'<path class="kept" d="{kept}"/>'], by_rows, by_columns)


def weight(shape: tuple[int, ...]) -> torch.Tensor:
    """Return a matrix, or a tensor that is one when it is flattened, with eight empty rows: formats differ there."""
    made = scores(32, 32)
    made[12:20] = 0
    return made.reshape(shape)


def memory(format: gs.Format, how: str, shape: tuple[int, ...], shades: int = 8) -> str:
    """Draw where values lie in memory, the darker, the later; and below it what each array takes."""
    values = weight(shape) if "%" in how and "block" not in how else scores(32, 32)
    t = gs.sparsify(values, how, format=format)
    places = [divmod(key, 32) for key in t.structure.entries().keys.tolist()]  # in the order of storage
    inside = []
    if t.values().numel() == t.numel():  # zeros are stored, too
        others = [(y, x) for y in range(32) for x in range(32) if (y, x) not in set(places)]
        inside.append(f'<path class="zero" d="{cells(others)}"/>')
    for shade in range(shades):
        part = places[len(places) * shade // shades : len(places) * (shade + 1) // shades]
        inside.append(f'<path class="kept" opacity="{0.2 + 0.8 * shade / (shades - 1):.2f}" d="{cells(part)}"/>')
    bars = arrays(t, 32 * CELL + 8)
    return frame(32, 32, f"how {format!r} stores a weight", inside, extra=bars, by_rows=_planes(shape))


def _planes(shape: tuple[int, ...]) -> int:
    """Rows between two guide lines: those of one matrix of a tensor of three dimensions."""
    return shape[-2] if len(shape) > 2 else 0


BAR, SCALE = 15, 32 * CELL / 5120  # height of a bar; units a byte, so that Masked, the largest, fits
DENSE = 32 * 32 * 4


def arrays(t: gs.SparseTensor, top: int) -> list[str]:
    """Draw a bar for each array, as long as it has bytes; and a line where a dense weight would end."""
    rows = [("values", t.values(), "kept"), *((name, array, "index") for name, array in t.structure.arrays.items())]
    out = []
    for i, (name, array, kind) in enumerate(rows):
        y = top + i * (BAR + 14)
        count = array.numel() * array.element_size()
        stored = 4 * t.nnz if kind == "kept" else count
        text = f"{name}: {array.numel()} x {str(array.dtype).removeprefix('torch.')}"
        out.append(f'<text x="0" y="{y + 9}">{text}</text>')
        out.append(f'<path class="{kind}" d="M0 {y + 13}h{stored * SCALE:.1f}v{BAR - 5}h-{stored * SCALE:.1f}z"/>')
        if count > stored:  # padding, or zeros
            more = (count - stored) * SCALE
            out.append(f'<path class="zero" d="M{stored * SCALE:.1f} {y + 13}h{more:.1f}v{BAR - 5}h-{more:.1f}z"/>')
    out.append(f'<path class="guide" d="M{DENSE * SCALE:.1f} {top}v{len(rows) * (BAR + 14)}"/>')
    return out


def main() -> None:
    """Write all pictures."""
    FIGURES.mkdir(exist_ok=True)
    for name, (how, by_rows, by_columns) in PATTERNS.items():
        (FIGURES / f"pattern-{name}.svg").write_text(pattern(how, by_rows, by_columns), encoding="utf-8")
    for name, what in FORMATS.items():
        (FIGURES / f"format-{name}.svg").write_text(memory(*what), encoding="utf-8")


if __name__ == "__main__":
    main()
