"""ELL: the same number of places in every row."""

from __future__ import annotations

import torch

from gossamer.formats.base import Format, register_name
from gossamer.formats.levels import Dense, Fixed
from gossamer.formats.structure import Matrix, Structure


class ELL(Format):
    """Every row has ``width`` places for a column and its value; unused ones are padding (column -1, value 0).

    Parameters
    ----------
    width
        Places in each row; by default the number of entries of the fullest row.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_dense(torch.tensor([[1., 2.], [0., 3.]]), gs.ELL()).structure.arrays["crd1"]
    tensor([[ 0,  1],
            [ 1, -1]], dtype=torch.int32)
    """

    def __init__(self, width: int | None = None) -> None:
        if width is not None and (type(width) is not int or width < 0):
            raise ValueError(f"width={width!r} must be a non-negative integer, or None to fit the fullest row")
        self.width = width
        super().__init__(Dense(), Fixed(width))

    def __repr__(self) -> str:
        return f"ELL({'' if self.width is None else self.width})"

    def matrix(self, structure: Structure) -> Matrix:
        rows, cols = self.group_sizes(structure.shape)
        crd = structure.arrays["crd1"]
        places = torch.arange(crd.numel(), device=crd.device).view(crd.shape)
        if torch.compiler.is_compiling():
            # a trace can't count the entries: padding stays, as column 0 with the value 0
            pos = torch.arange(rows + 1, dtype=crd.dtype, device=crd.device) * min(crd.shape[1], cols)
            return Matrix(pos, crd[:, :cols].clamp(min=0).reshape(-1), rows, cols, False, places[:, :cols].reshape(-1))
        real = crd >= 0
        pos = torch.zeros(rows + 1, dtype=crd.dtype, device=crd.device)
        pos[1:] = torch.cumsum(real.sum(1), 0)
        full = pos[-1] == crd.numel()
        return Matrix(pos, crd[real], rows, cols, False, None if full else places[real])


register_name(ELL())
