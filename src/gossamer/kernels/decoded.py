"""Products of formats that are multiplied as they are, and whose gradients go by a dense copy."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import Structure
from gossamer.kernels.product import Product, activated, matrix_of_tokens, recorded


class DecodedProduct(Product):
    """A matrix with a fast ``multiply``; ``back`` and ``sample`` are torch's dense products."""

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose, self.structure = transpose, structure
        self.rows, self.cols = structure.format.group_sizes(structure.shape)

    def multiply(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        """Return act(x @ W.T + bias) for x of two dimensions or more; in traces too."""
        raise NotImplementedError

    def dense(self, values: Tensor, keys: Tensor, valid: Tensor | None) -> Tensor:
        """Return the matrix of any values, given the structure's ``places()``; autograd follows."""
        kept = values if valid is None else values.masked_fill(~valid, 0)
        return kept.new_zeros(self.rows * self.cols).index_add(0, keys, kept).view(self.rows, self.cols)

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        out = self.multiply(x if x.dim() > 1 else x.unsqueeze(0), values, bias, activation)
        if feature_major:
            out = out.flatten(0, -2).t().contiguous().t().reshape(out.shape)
        return out if x.dim() > 1 else out.squeeze(0)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return grad @ self.dense(values, *self.structure.places())

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        dense = matrix_of_tokens(left).t() @ matrix_of_tokens(right)
        keys, valid = self.structure.places()
        values = dense.reshape(-1)[keys]
        return values if valid is None else values.masked_fill(~valid, 0)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        if not recorded():
            return self.forward(x, values, bias, activation)
        keys, valid = self.structure.places()  # here: torch.compile breaks its graph at this, and best in this function
        return activated(F.linear(x, self.dense(values, keys, valid), bias), activation)
