"""Dense (an ordinary torch tensor) and Masked (an ordinary tensor with a mask)."""

from __future__ import annotations

import torch

from gossamer.formats import levels
from gossamer.formats.base import Format
from gossamer.formats.levels import Level
from gossamer.formats.structure import Matrix, Structure, whole_matrix


class Dense(Format):
    """Every value is stored: an ordinary ``torch.Tensor``. Tables of operators use it for dense arguments.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> type(gs.sparsify(torch.randn(4, 4), "50%", format=gs.Dense()))
    <class 'torch.Tensor'>
    """

    def __init__(self) -> None:
        super().__init__("dense")

    def __repr__(self) -> str:
        return "Dense()"

    def _identity(self) -> tuple[object, ...]:
        return ("Dense",)

    def stack(self, ndim: int) -> tuple[Level, ...]:
        return (levels.Dense(),) * max(ndim, 1)


class Masked(Format):
    """All values are stored, and a mask marks those that are part of the tensor; the others are zero.

    It computes like dense and is not smaller: a format for training.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> gs.sparsify(torch.tensor([[1., 2.], [4., 3.]]), "50%", format=gs.Masked()).mask()
    tensor([[False, False],
            [ True,  True]])
    """

    def __init__(self) -> None:
        super().__init__("dense", "bitmap")

    def __repr__(self) -> str:
        return "Masked()"

    def _identity(self) -> tuple[object, ...]:
        return ("Masked",)

    def stack(self, ndim: int) -> tuple[Level, ...]:
        return (*(levels.Dense(),) * (max(ndim, 1) - 1), levels.Bitmap())

    def matrix(self, structure: Structure) -> Matrix | None:
        # a trace can't count the stored entries, so it uses all positions; those that are not stored have the value 0
        return whole_matrix(structure) if torch.compiler.is_compiling() else None

    def transposed(self) -> None:
        """Return None: its values always have the order of the dense tensor."""
