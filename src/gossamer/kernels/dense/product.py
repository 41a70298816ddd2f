"""Products with a masked matrix: torch's dense product on the tensor that Masked stores."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import Masked, Structure
from gossamer.formats.structure import matrix_sizes
from gossamer.formats.values import mask_padding
from gossamer.kernels.product import Case, Product, activated, matrix_of_tokens, recorded


class DenseProduct(Product):
    """A matrix whose zeros are stored too."""

    formats = (Masked,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.structure, self.transpose = structure, transpose
        self.stored = matrix_sizes(structure.shape)
        self.rows, self.cols = self.stored[::-1] if transpose else self.stored

    @staticmethod
    def takes(case: Case) -> str | None:
        return None

    def _matrix(self, values: Tensor) -> Tensor:
        stored = values.view(self.stored)
        return stored.t() if self.transpose else stored

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        return activated(F.linear(x, self._matrix(values), bias), activation)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return grad @ self._matrix(values)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        left, right = matrix_of_tokens(left), matrix_of_tokens(right)
        product = right.t() @ left if self.transpose else left.t() @ right
        return self.clean(product.view(self.structure.value_shape))

    def clean(self, values: Tensor) -> Tensor:
        return mask_padding(values, self.structure)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        return self.forward(x, self.clean(values) if recorded() else values, bias, activation)
