"""Products with packed bitmaps: dense tensor cores on a GPU for few tokens, torch's dense product elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import PackedBitmap, Structure
from gossamer.formats.levels.pieces import TILE
from gossamer.kernels.bitmap import cuda as cuda  # the GPU's part of the operator
from gossamer.kernels.bitmap.operators import bitmap_of, decode
from gossamer.kernels.product import Case, Product, activated, matrix_of_tokens, recorded


class BitmapProduct(Product):
    """A matrix in packed bitmaps."""

    formats = (PackedBitmap,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose, self.structure = transpose, structure
        if torch.compiler.is_compiling():  # numbers of values are not known in a trace: a full piece is the largest
            self.rows, self.cols = structure.format.group_sizes(structure.shape)
            self.bits, self.pos, most = structure.arrays["bits1"], structure.arrays["pos1"], TILE * TILE
        else:
            self.bits, self.pos, (self.rows, self.cols, most) = bitmap_of(structure)
        self.sizes = self.rows, self.cols, most

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.device != "cuda":
            return f"its kernels are for a GPU, not {case.device}"
        return "its kernels don't multiply by the transpose" if case.transpose else None

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        tokens = x if x.dim() > 1 else x.unsqueeze(0)
        out = torch.ops.gossamer.bitmap_linear.default(
            values, self.bits, self.pos, tokens, bias, *self.sizes, activation
        )
        if feature_major:
            out = out.flatten(0, -2).t().contiguous().t().reshape(out.shape)
        return out if x.dim() > 1 else out.squeeze(0)

    def operator(self, values: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        bits, pos, (rows, cols, most) = self.bits, self.pos, self.sizes
        linear = torch.ops.gossamer.bitmap_linear.default
        return lambda x, values, bias: linear(values, bits, pos, x, bias, rows, cols, most, 0)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        dense = cuda.dense_of if values.is_cuda else decode
        return grad @ dense(values, self.bits, self.pos, self.rows, self.cols)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        dense = matrix_of_tokens(left).t() @ matrix_of_tokens(right)
        keys, valid = self.structure.places()
        values = dense.reshape(-1)[keys]
        return values if valid is None else values.masked_fill(~valid, 0)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        if not recorded():
            return self.forward(x, values, bias, activation)
        keys, valid = self.structure.places()
        kept = values if valid is None else values.masked_fill(~valid, 0)
        dense = kept.new_zeros(self.rows * self.cols).index_add(0, keys, kept).view(self.rows, self.cols)
        return activated(F.linear(x, dense, bias), activation)
