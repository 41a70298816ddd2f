"""COO: a list of coordinates."""

from __future__ import annotations

import torch

from gossamer.formats.base import Format
from gossamer.formats.levels import Compressed, Level, Singleton
from gossamer.formats.structure import Matrix, Structure


class COO(Format):
    """A list of coordinates in ascending order, for any number of dimensions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.COO())
    >>> t.structure.arrays["crd0"], t.structure.arrays["crd1"]
    (tensor([0, 1], dtype=torch.int32), tensor([1, 0], dtype=torch.int32))
    """

    def __init__(self) -> None:
        super().__init__("compressed-nonunique")

    def __repr__(self) -> str:
        return "COO()"

    def _identity(self) -> tuple[object, ...]:
        return ("COO",)

    def stack(self, ndim: int) -> tuple[Level, ...]:
        return (Compressed(unique=False), *(Singleton(),) * (max(ndim, 1) - 1))

    def matrix(self, structure: Structure) -> Matrix | None:
        if len(structure.shape) != 2:
            return None
        rows, cols = structure.shape
        first = structure.arrays["crd0"]
        bounds = torch.arange(rows + 1, dtype=first.dtype, device=first.device)
        pos = torch.searchsorted(first, bounds, out_int32=first.dtype == torch.int32)
        return Matrix(pos, structure.arrays["crd1"], rows, cols, False, None)
