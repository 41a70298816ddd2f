"""Products with packed V:N:M: sparse tensor cores on a GPU, torch's dense product elsewhere."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.formats import PackedVNM, Structure
from gossamer.kernels.product import Case, Product, matrix_of_tokens, plain
from gossamer.kernels.transpose import feature_major as as_feature_major
from gossamer.kernels.transpose import token_major
from gossamer.kernels.vnm import cuda
from gossamer.kernels.vnm.operators import vnm_of

_linear = torch.ops.gossamer.vnm_linear.default


class VnmProduct(Product):
    """A matrix in packed V:N:M; the result is feature-major if x is, unless another order is asked for."""

    formats = (PackedVNM,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose = transpose
        self.shared, self.meta, self.sizes = vnm_of(structure)
        self.rows, self.cols = self.sizes[:2]

    @staticmethod
    def takes(case: Case) -> str | None:
        return "its kernels don't multiply by the transpose" if case.transpose else None

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        if values.is_cuda and plain(x) and plain(values):
            # the dispatcher is for traces and tensors of other kinds; plain ones go straight to the kernel, 5 us sooner
            return cuda.linear(values, self.shared, self.meta, x, bias, *self.sizes, activation, feature_major)
        out = _linear(values, self.shared, self.meta, matrix_of_tokens(x), bias, *self.sizes, activation)
        if feature_major is not None:
            out = as_feature_major(out) if feature_major else token_major(out)
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], self.rows)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return grad @ torch.ops.gossamer.vnm_decode(values, self.shared, self.meta, *self.sizes)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        dense = (matrix_of_tokens(left).t() @ matrix_of_tokens(right)).contiguous()
        return torch.ops.gossamer.vnm_sample(dense, self.shared, self.meta, *self.sizes)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        out = _linear(values, self.shared, self.meta, matrix_of_tokens(x), bias, *self.sizes, activation)
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], self.rows)
