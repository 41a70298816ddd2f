"""Products with packed tiles in bfloat16 on a CPU, by the native kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import PackedTiles, Structure
from gossamer.kernels.decoded import DecodedProduct
from gossamer.kernels.product import Case
from gossamer.kernels.tiles import operators as operators  # which defines the operator


class TilesProduct(DecodedProduct):
    """A matrix in packed tiles."""

    formats = (PackedTiles,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        super().__init__(structure, transpose)
        self.pos, self.bits = structure.arrays["pos1"], structure.arrays["bits1"]

    @classmethod
    def ready(cls) -> bool:
        return native.load()

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.device != "cpu":
            return "its kernels run on a CPU"
        if case.dtype is not torch.bfloat16:
            return "its kernels multiply bfloat16"
        if case.transpose:
            return "its kernels don't multiply by the transpose"
        return "the native kernels could not be built" if native.loaded() is False else None

    def multiply(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        linear = torch.ops.gossamer.tiles_linear.default
        return linear(self.pos, self.bits, values, x, bias, self.rows, self.cols, activation)

    def operator(self, values: Tensor) -> Callable[[Tensor, Tensor, Tensor | None], Tensor] | None:
        pos, bits, rows, cols = self.pos, self.bits, self.rows, self.cols
        linear = torch.ops.gossamer.tiles_linear.default
        return lambda x, values, bias: linear(pos, bits, values, x, bias, rows, cols, 0)
