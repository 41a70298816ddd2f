"""Products with packed rows on a CPU, by the native kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Structure
from gossamer.formats.packed import PackedRows
from gossamer.kernels.native_product import NativeProduct, register_gradients
from gossamer.kernels.rows import operators


class RowsProduct(NativeProduct):
    """A matrix of packed rows."""

    formats = (PackedRows,)
    prefix = "rows"
    direct_back = staticmethod(operators.linear_t)

    @staticmethod
    def arguments(structure: Structure) -> tuple[Any, ...]:
        return operators.rows_of(structure)

    def clean(self, values: Tensor) -> Tensor:
        return torch.where(operators.used(self.arrays[2], *self.sizes[3:6]), values, 0)


register_gradients(operators._library, RowsProduct, arrays=3, block=0)
