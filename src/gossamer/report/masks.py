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


@dataclass(frozen=True)
class Picture:
    """What is drawn of a mask: plain numbers, of a few kB."""

    shape: tuple[int, int]
    corner: tuple[tuple[bool, ...], ...]
    whole: tuple[tuple[float, ...], ...]

    def svgs(self) -> tuple[Html, Html]:
        """Return the corner and the whole."""
        return _corner(self), _whole(self)


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
    return _frame(width, height, "the whole mask by density", "".join(paths))


def _frame(width: int, height: int, label: str, inside: str) -> Html:
    border = f'<rect class="paper" width="{width}" height="{height}" stroke-width="0.4"/>'
    return Html(f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{inside}{border}</svg>')
