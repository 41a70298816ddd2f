"""COO: a list of coordinates."""

from __future__ import annotations

import torch

from gossamer.formats.base import Format, register_name
from gossamer.formats.keys import ravel
from gossamer.formats.levels import Compressed, Level, Singleton
from gossamer.formats.structure import INT32, Matrix, Structure, matrix_sizes


class COO(Format):
    """A list of coordinates in ascending order, for any number of dimensions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.COO())
    >>> t.structure.arrays["crd0"], t.structure.arrays["crd1"]
    (tensor([0, 1], dtype=torch.int32), tensor([1, 0], dtype=torch.int32))
    >>> gs.Format("compressed-nonunique", "singleton") == gs.COO()
    True
    """

    def __init__(self) -> None:
        super().__init__("compressed-nonunique")

    def __repr__(self) -> str:
        return "COO()"

    def _identity(self) -> tuple[object, ...]:
        return ("COO",)

    def stack(self, ndim: int) -> tuple[Level, ...]:
        return (Compressed(unique=False), *(Singleton(),) * (max(ndim, 1) - 1))

    def matrix(self, structure: Structure) -> Matrix:
        rows, cols = matrix_sizes(structure.shape)
        crds = [structure.arrays[f"crd{d}"] for d in range(max(len(structure.shape), 1))]
        if max(rows, cols) > INT32:
            crds = [crd.long() for crd in crds]
        if len(crds) == 1:
            return Matrix(structure.arrays["pos0"].to(crds[0].dtype), crds[0], rows, cols, False, None)
        bounds = torch.arange(rows + 1, dtype=crds[0].dtype, device=crds[0].device)
        pos = torch.searchsorted(crds[0], bounds, out_int32=crds[0].dtype == torch.int32)
        return Matrix(pos, ravel(crds[1:], structure.shape[1:]), rows, cols, False, None)


for _more in range(1, 8):
    register_name(COO(), (Compressed(unique=False), *(Singleton(),) * _more))
