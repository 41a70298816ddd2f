"""Products with compressed rows of blocks (BSR) on a CPU, by the native kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from gossamer.formats import BSR, Structure
from gossamer.kernels.blocks import operators
from gossamer.kernels.native_product import NativeProduct, register_gradients


class BlocksProduct(NativeProduct):
    """A matrix of compressed rows of blocks."""

    formats = (BSR,)
    prefix = "blocks"
    direct_back = staticmethod(operators.linear_t)

    @staticmethod
    def arguments(structure: Structure) -> tuple[Any, ...]:
        return (*operators.blocks_of(structure), structure.value_shape[1:])

    def clean(self, values: Tensor) -> Tensor:
        return values.contiguous()  # the kernels read nothing outside the matrix


register_gradients(operators._library, BlocksProduct, arrays=2, block=2)
