"""Products on the meta device, where there are shapes and types and no data."""

from __future__ import annotations

from torch import Tensor

from gossamer.formats import BSR, Format, Masked, PackedBitmap, PackedRows, PackedTiles, PackedVNM, Structure
from gossamer.formats.structure import matrix_sizes
from gossamer.kernels.product import Case, Product

ELSEWHERE = "the matrix is not on the meta device"


class MetaProduct(Product):
    """A matrix of any format, of which only the shape is known."""

    formats = (Format, Masked, BSR, PackedRows, PackedVNM, PackedBitmap, PackedTiles)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.structure, self.transpose = structure, transpose
        sizes = matrix_sizes(structure.shape)
        self.rows, self.cols = sizes[::-1] if transpose else sizes

    @staticmethod
    def takes(case: Case) -> str | None:
        return None if case.device == "meta" else ELSEWHERE

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        return x.new_empty((*x.shape[:-1], self.rows))

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return grad.new_empty((*grad.shape[:-1], self.cols))

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        return left.new_empty(self.structure.value_shape)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        return self.forward(x, values, bias, activation)
