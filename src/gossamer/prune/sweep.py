"""SparseGPT's sweep: columns from left to right, each error compensated by the columns that are still free.

The published algorithm updates all columns to the right after each block, by rows of the Cholesky factor of H^-1. The
same numbers come without inverting H. With H = R R^T, R upper triangular, a change D of the weight costs |R^T D^T|^2,
and what the columns left of j have changed by, D_<j, moves the best value of the columns from j on to W_j - R_jj^-T
c_j, c_j = R_<j,j^T D_<j. So each block of columns first gathers its c in one product, and then works within itself.

Lower bound for a weight of r rows and n columns: n^3 / 3 for the Cholesky factor and r n^2 for the products, against
4 n^3 / 3 + r n^2 for the published one; the work within blocks of 128 is r n 128, element by element.

Weights are [groups, columns, rows] here: a column is contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

BLOCK = 128
TILE = 8  # columns that are worked off one by one before a product takes over
_WIDE = 64  # wider than this, a decision covers several tiles

Choose = Callable[[Tensor, Tensor, int], Tensor]
"""(weights [groups, columns, rows], factor [groups, columns, columns], first column) -> True where a value stays."""


class Grid(NamedTuple):
    """Whole multiples of a scale for each row, [groups, rows], from -levels to levels."""

    scale: Tensor
    levels: int

    def rounded(self, x: Tensor) -> Tensor:
        """The nearest values of the grid, for a column [groups, rows]."""
        return (x / self.scale).round().clamp(-self.levels, self.levels) * self.scale


class Swept(NamedTuple):
    """A weight after the sweep, and what stayed of it; both [groups, rows, columns]."""

    weight: Tensor
    mask: Tensor


def sweep(
    weight: Tensor,
    factor: Tensor,
    choose: Choose,
    *,
    width: int,
    joint: bool = False,
    block: int = BLOCK,
    grid: Grid | None = None,
) -> Swept:
    """Prune a weight column by column.

    Parameters
    ----------
    weight
        [groups, rows, columns]; not changed.
    factor
        R with R R^T = H, [groups, columns, columns], upper triangular.
    choose
        What stays, asked for every `width` columns when it is their turn.
    width
        Columns that are decided together.
    joint
        Repair the survivors among these columns too (exact, a small solve a row), instead of those to the right only.
    block
        Columns that gather their corrections in one product.
    grid
        Round each column to this grid as it is fixed: the columns to its right make up for that too. Not with `joint`.

    Examples
    --------
    >>> import torch
    >>> keep_first = lambda w, r, at: torch.tensor([True, False])[None, :, None].expand_as(w)
    >>> r, _ = torch.linalg.cholesky_ex(torch.tensor([[[2.0, 1.0], [1.0, 2.0]]]))
    >>> w, mask = sweep(torch.tensor([[[3.0, 1.0]]]), r.flip(1, 2).mT.flip(1, 2).mT, keep_first, width=2, joint=True)
    >>> w  # dropping 1 is made good by 1/2 more of the first
    tensor([[[3.5000, 0.0000]]])
    """
    columns = weight.shape[2]
    old = _transposed(weight)
    new, change = torch.empty_like(old), torch.empty_like(old)
    kept = torch.empty(old.shape, dtype=torch.bool, device=old.device)
    tile = width if joint or width >= TILE else TILE - TILE % width
    block = max(block - block % width, width)
    spreads = _inverses(factor, tile if width <= _WIDE or joint else TILE, block)
    for start in range(0, columns, block):
        stop = min(start + block, columns)
        owed = torch.bmm(factor[:, :start, start:stop].mT, change[:, :start])
        fixed = None
        if width > _WIDE and not joint:  # decided for all tiles of the width at once, as things stand now
            fixed = _decide(old, owed, factor, choose, start, stop, width)
        step = TILE if fixed is not None else tile
        for at in range(start, stop, step):
            part = slice(at, min(at + step, stop))
            here, spread = factor[:, part, part], spreads[at]
            due = owed[:, at - start : part.stop - start]
            if at > start:
                due = torch.baddbmm(due, factor[:, start:at, part].mT, change[:, start:at])
            now = torch.baddbmm(old[:, part], spread.mT, due, alpha=-1)
            if fixed is not None:
                mask = kept[:, part] = fixed[:, at - start : part.stop - start]
                _columns(now, spread, here, lambda *_, mask=mask: mask, part.stop - at, at, mask, grid)
            elif joint:
                mask = kept[:, part] = choose(now, here, at)
                now = refit(now, here, mask)
            else:
                _columns(now, spread, here, choose, width, at, kept[:, part], grid)
            new[:, part] = now
            torch.sub(now, old[:, part], out=change[:, part])
    return Swept(_transposed(new), _transposed(kept))


def _transposed(x: Tensor) -> Tensor:
    """Each matrix transposed, contiguous; one at a time where there are few, which torch does in blocks."""
    if len(x) > 8:
        return x.transpose(1, 2).contiguous()
    return torch.stack([matrix.t().contiguous() for matrix in x]) if len(x) > 1 else x[0].t().contiguous()[None]


def _decide(old: Tensor, owed: Tensor, factor: Tensor, choose: Choose, start: int, stop: int, width: int) -> Tensor:
    here = factor[:, start:stop, start:stop]
    now = old[:, start:stop] - torch.linalg.solve_triangular(here.mT, owed, upper=False)
    parts = [slice(at, min(at + width, stop - start)) for at in range(0, stop - start, width)]
    return torch.cat([choose(now[:, p], here[:, p, p], start + p.start) for p in parts], 1)


def _inverses(factor: Tensor, tile: int, block: int) -> dict[int, Tensor]:
    """Inverses of the tiles on the diagonal of R, by their first column."""
    columns = factor.shape[1]
    starts = [at for start in range(0, columns, block) for at in range(start, min(start + block, columns), tile)]
    ends = [min(at + tile, at - at % block + block, columns) for at in starts]
    full = [at for at, end in zip(starts, ends, strict=True) if end - at == tile]
    found = {}
    if full:
        tiles = torch.stack([factor[:, at : at + tile, at : at + tile] for at in full])
        eye = torch.eye(tile, dtype=factor.dtype, device=factor.device).expand_as(tiles)
        found = dict(zip(full, torch.linalg.solve_triangular(tiles, eye, upper=True), strict=True))
    for at, end in zip(starts, ends, strict=True):
        if at not in found:
            eye = torch.eye(end - at, dtype=factor.dtype, device=factor.device).expand(len(factor), -1, -1)
            found[at] = torch.linalg.solve_triangular(factor[:, at:end, at:end], eye, upper=True)
    return found


def _columns(
    now: Tensor, spread: Tensor, here: Tensor, choose: Choose, width: int, at: int, kept: Tensor, grid: Grid | None
) -> None:
    """One tile in place, column after column: what a column loses is divided among the columns to its right."""
    columns = now.shape[1]
    share = spread / spread.diagonal(dim1=1, dim2=2)[:, :, None]  # row j: what removing 1 there takes from the others
    for first in range(0, columns, width):
        last = min(first + width, columns)
        mask = choose(now[:, first:last], here[:, first:last, first:last], at + first)
        kept[:, first:last] = mask
        gone = (~mask).to(now.dtype)
        for j in range(first, last):
            lost = now[:, j] * gone[:, j - first]
            if grid is not None:
                lost = now[:, j] - grid.rounded(now[:, j] - lost)
            if j + 1 < columns:
                now[:, j + 1 :].addcmul_(share[:, j, j + 1 :, None], lost[:, None], value=-1)
            if grid is not None:
                now[:, j] -= lost
    now.mul_(kept)


def refit(now: Tensor, here: Tensor, mask: Tensor) -> Tensor:
    """Best values of the survivors of a few columns: min |R^T (new - now)| with new zero where the mask is False.

    `now` and `mask` are [groups, columns, rows], `here` is [groups, columns, columns].
    """
    groups, columns, rows = now.shape
    precision = here @ here.mT
    wanted = torch.bmm(precision, now)
    keep = mask.transpose(1, 2)  # groups, rows, columns
    eye = torch.eye(columns, dtype=now.dtype, device=now.device)
    out = torch.empty_like(wanted.transpose(1, 2))
    step = max(1, (1 << 22) // (columns * columns * groups))
    for at in range(0, rows, step):
        k = keep[:, at : at + step]
        system = torch.where(k[..., None] & k[..., None, :], precision[:, None], eye)
        right = wanted[:, :, at : at + step].transpose(1, 2) * k
        out[:, at : at + step] = solve_spd(system, right)
    return (out * keep).transpose(1, 2)


def solve_spd(system: Tensor, right: Tensor) -> Tensor:
    """Solve many small symmetric positive definite systems; [..., k, k] and [..., k]."""
    lower, info = torch.linalg.cholesky_ex(system)
    if bool(info.any()):  # rounding made one indefinite: float64, then a little damping
        wide = system.double()
        lower, info = torch.linalg.cholesky_ex(wide)
        if bool(info.any()):
            wide.diagonal(dim1=-2, dim2=-1).mul_(1 + 1e-8)
            lower, info = torch.linalg.cholesky_ex(wide)
            if bool(info.any()):
                return torch.linalg.lstsq(wide, right.double()[..., None]).solution[..., 0].to(right.dtype)
    return torch.cholesky_solve(right[..., None].to(lower.dtype), lower)[..., 0].to(right.dtype)
