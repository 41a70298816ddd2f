"""Products with packed bitmaps: sparse tensor cores on a GPU for few tokens, torch's dense product elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.formats import PackedBitmap, Structure
from gossamer.formats.levels.pieces import MOST
from gossamer.kernels.bitmap import cuda as cuda  # the GPU's part of the operator
from gossamer.kernels.bitmap.operators import bitmap_of, decode
from gossamer.kernels.decoded import DecodedProduct
from gossamer.kernels.product import Case


class BitmapProduct(DecodedProduct):
    """A matrix in packed bitmaps."""

    formats = (PackedBitmap,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        super().__init__(structure, transpose)
        if torch.compiler.is_compiling():  # numbers of values are not known in a trace: a full piece is the largest
            self.bits, self.pos, most = structure.arrays["codes1"], structure.arrays["pos1"], MOST
        else:
            self.bits, self.pos, (_, _, most) = bitmap_of(structure)
        self.sizes = self.rows, self.cols, most

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.device != "cuda":
            return f"its kernels are for a GPU, not {case.device}"
        return "its kernels don't multiply by the transpose" if case.transpose else None

    def multiply(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        linear = torch.ops.gossamer.bitmap_linear.default
        return linear(values, self.bits, self.pos, x, bias, *self.sizes, activation)

    def operator(self, values: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        bits, pos, (rows, cols, most) = self.bits, self.pos, self.sizes
        linear = torch.ops.gossamer.bitmap_linear.default
        return lambda x, values, bias: linear(values, bits, pos, x, bias, rows, cols, most, 0)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        dense = cuda.dense_of if values.is_cuda else decode
        return grad @ dense(values, self.bits, self.pos, self.rows, self.cols)
