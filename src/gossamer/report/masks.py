"""A mask as a picture: its corner value by value, and the whole of it by density."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.report.page import Html

CORNER, WHOLE = 64, 32
_SHADES = 5
_WHOLE = "the whole mask by density"


@dataclass(frozen=True)
class Picture:
    """What is drawn of a mask: plain numbers, of a few kB."""

    shape: tuple[int, int]
    corner: tuple[tuple[bool, ...], ...]
    whole: tuple[tuple[float, ...], ...]

    def svgs(self) -> tuple[Html, Html]:
        """Return the corner and the whole."""
        return _corner(self), _whole(self)

    def canvases(self) -> tuple[Html, Html]:
        """Return both as data of 2 kB, which page.js draws when they are unfolded."""
        corner = [["0" if not kept else str(_SHADES) for kept in row] for row in self.corner]
        top = max(max(row) for row in self.whole) or 1.0
        whole = [[str(round(density / top * _SHADES)) for density in row] for row in self.whole]
        height, width = len(corner), len(corner[0])
        return _canvas(corner, f"the first {height} rows and {width} columns"), _canvas(whole, _WHOLE)


def picture(mask: Tensor) -> Picture:
    """Return the part of a mask that is drawn.

    Examples
    --------
    >>> import torch
    >>> picture(torch.eye(2).bool()).whole
    ((1.0, 0.0), (0.0, 1.0))
    """
    mask = (mask.flatten(1) if mask.dim() > 1 else mask.reshape(1, -1)).cpu()
    rows, columns = mask.shape
    corner = mask[:CORNER, :CORNER].tolist()
    size = (min(WHOLE, rows), min(WHOLE, columns))
    # some rows at a time, so that no float copy of a large mask is ever made
    lines = torch.cat([F.adaptive_avg_pool1d(part[None].float(), size[1])[0] for part in mask.split(256)])
    whole = F.adaptive_avg_pool2d(lines[None, None], size)[0, 0].tolist()
    return Picture((rows, columns), tuple(map(tuple, corner)), tuple(map(tuple, whole)))


def _runs(row: Sequence[object], y: int) -> Iterator[tuple[object, str]]:
    """Neighbours that are alike as one rectangle: what they are, and its path."""
    x = 0
    while x < len(row):
        length = next((i for i in range(x, len(row)) if row[i] != row[x]), len(row)) - x
        yield row[x], f"M{x} {y}h{length}v1h-{length}z"
        x += length


def _corner(drawn: Picture) -> Html:
    path = "".join(run for y, row in enumerate(drawn.corner) for kept, run in _runs(row, y) if kept)
    height, width = len(drawn.corner), len(drawn.corner[0])
    return _frame(width, height, f"the first {height} rows and {width} columns", f'<path class="ink" d="{path}"/>')


def _whole(drawn: Picture) -> Html:
    """Cells by how full they are, next to the fullest; a path for each shade."""
    top = max(max(row) for row in drawn.whole) or 1.0
    shades: dict[object, list[str]] = {}
    for y, row in enumerate(drawn.whole):
        for shade, run in _runs([round(density / top * _SHADES) for density in row], y):
            shades.setdefault(shade, []).append(run)
    paths = (
        f'<path class="ink" opacity="{shade / _SHADES:g}" d="{"".join(shades[shade])}"/>'
        for shade in range(1, _SHADES + 1)
        if shade in shades
    )
    height, width = len(drawn.whole), len(drawn.whole[0])
    return _frame(width, height, _WHOLE, "".join(paths))


def _canvas(shades: Sequence[Sequence[str]], label: str) -> Html:
    """Rows of digits, each a shade, packed: a run of equal ones is a digit and its length as a letter."""
    size = f'width="{len(shades[0])}" height="{len(shades)}"'
    text = " ".join(_packed(row) for row in shades)
    return Html(f'<canvas {size} role="img" aria-label="{label}" data-shades="{text}"></canvas>')


def _packed(row: Sequence[str]) -> str:
    """Return a row with runs of equal digits in short: "0" nine times is "0i".

    Examples
    --------
    >>> _packed("0000000005050")
    '0i5050'
    """
    out, x = [], 0
    while x < len(row):
        length = next((i for i in range(x, len(row)) if row[i] != row[x]), len(row)) - x
        length = min(length, 26)
        out.append(row[x] if length == 1 else f"{row[x]}{chr(96 + length)}")
        x += length
    return "".join(out)


def _frame(width: int, height: int, label: str, inside: str) -> Html:
    border = f'<rect class="paper" width="{width}" height="{height}" stroke-width="0.4"/>'
    return Html(f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{inside}{border}</svg>')
