"""Compressed rows and columns: CSR, CSC, DCSR, and CSF for any number of dimensions."""

from __future__ import annotations

import torch

from gossamer.formats.base import Format, register_name
from gossamer.formats.levels import Compressed, Level
from gossamer.formats.structure import Matrix, Structure


class CSR(Format):
    """Compressed sparse rows: for every row, the columns with a value. ``Format("dense", "compressed")``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR()).values()
    tensor([3., 4.])
    """

    def __init__(self) -> None:
        super().__init__("dense", "compressed")

    def __repr__(self) -> str:
        return "CSR()"

    def matrix(self, structure: Structure) -> Matrix:
        rows, cols = self.group_sizes(structure.shape)
        return Matrix(structure.arrays["pos1"], structure.arrays["crd1"], rows, cols, False, None)


class CSC(Format):
    """Compressed sparse columns: for every column, the rows with a value.

    The same as ``Format("dense", "compressed", order=(1, 0))``.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSC()).values()
    tensor([4., 3.])
    """

    def __init__(self) -> None:
        super().__init__("dense", "compressed", order=(1, 0))

    def __repr__(self) -> str:
        return "CSC()"

    def matrix(self, structure: Structure) -> Matrix:
        rows, cols = self.group_sizes(structure.shape)
        return Matrix(structure.arrays["pos1"], structure.arrays["crd1"], rows, cols, True, None)


class DCSR(Format):
    """Doubly compressed rows: only rows with a value, and their columns.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> t = gs.from_dense(torch.diag(torch.tensor([0., 5., 0.])), gs.DCSR())
    >>> t.nnz
    1
    """

    def __init__(self) -> None:
        super().__init__("compressed", "compressed")

    def __repr__(self) -> str:
        return "DCSR()"

    def matrix(self, structure: Structure) -> Matrix:
        rows, cols = self.group_sizes(structure.shape)
        a = structure.arrays
        counts = torch.zeros(rows + 1, dtype=a["pos1"].dtype, device=structure.device)
        counts[a["crd0"].long() + 1] = a["pos1"].diff()
        return Matrix(counts.cumsum(0, dtype=counts.dtype), a["crd1"], rows, cols, False, None)


class CSF(Format):
    """Compressed sparse fibres: every level compressed, for any number of dimensions.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.from_dense(torch.eye(2).expand(2, 2, 2), gs.CSF())
    SparseTensor(shape=(2, 2, 2), format=CSF(), dtype=float32, nnz=4, density=50.0 %, bytes=96 of 32)
    """

    def __init__(self) -> None:
        super().__init__("compressed")

    def __repr__(self) -> str:
        return "CSF()"

    def _identity(self) -> tuple[object, ...]:
        return ("CSF",)

    def stack(self, ndim: int) -> tuple[Level, ...]:
        return (Compressed(),) * max(ndim, 1)


for _format in (CSR(), CSC(), DCSR()):
    register_name(_format)
