"""Products with packed V:N:M: sparse tensor cores on a GPU, torch's dense product elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.formats import PackedVNM, Structure
from gossamer.kernels import gpu
from gossamer.kernels.product import Case, Product, matrix_of_tokens, plain, recorded
from gossamer.kernels.transpose import feature_major as as_feature_major
from gossamer.kernels.transpose import token_major
from gossamer.kernels.vnm import cuda
from gossamer.kernels.vnm.operators import columns_of, vnm_of
from gossamer.kernels.vnm.plan import FEW_TOKENS

_linear, _forward = torch.ops.gossamer.vnm_linear.default, torch.ops.gossamer.vnm_forward.default
_HALF = (torch.float16, torch.bfloat16)


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

    def operator(self, values: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        if not values.is_cuda or not cuda._without_python:
            return None
        shared, meta, (rows, cols, v, m) = self.shared, self.meta, self.sizes
        return lambda x, values, bias: _forward(values, shared, meta, x, bias, rows, cols, v, m, 0)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return grad @ torch.ops.gossamer.vnm_decode(values, self.shared, self.meta, *self.sizes)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        dense = (matrix_of_tokens(left).t() @ matrix_of_tokens(right)).contiguous()
        return torch.ops.gossamer.vnm_sample(dense, self.shared, self.meta, *self.sizes)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        tokens, shared, sizes = matrix_of_tokens(x), self.shared, self.sizes
        if self.gathers(tokens):
            # by torch's own operators, which a compiler fuses into what computes x; the rest is an ordinary 2:4 product
            at = columns_of(shared, self.sizes[3])
            tokens, sizes = tokens.index_select(1, at), (self.rows, at.shape[0], 0, 4)
            shared = shared.new_empty(0)
        out = _linear(values, shared, self.meta, tokens, bias, *sizes, activation)
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], self.rows)

    def gathers(self, tokens: Tensor) -> bool:
        """Does the product in a trace begin by gathering the shared columns? Few tokens are gathered in the kernel."""
        _, cols, v, m = self.sizes
        if not tokens.is_cuda or tokens.dtype not in _HALF or recorded():
            return False
        whole = v == 0 and m != 4 and cols % (16 * m) == 0
        return whole and _hopper(tokens.get_device()) and tokens.shape[0] > FEW_TOKENS


def _hopper(device: int) -> bool:
    """Has a GPU the kernels that gather first? A constant in traces."""
    return gpu.capability(device) == (9, 0)


_hopper._dynamo_marked_constant = True  # type: ignore[attr-defined]
