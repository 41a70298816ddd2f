"""Products with packed rows on a CPU, by the native kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import Structure
from gossamer.formats.packed import PackedRows
from gossamer.kernels.native_product import NativeProduct, as_native, register_gradients
from gossamer.kernels.product import plain
from gossamer.kernels.rows import operators


class RowsProduct(NativeProduct):
    """A matrix of packed rows."""

    formats = (PackedRows,)
    prefix = "rows"
    convolves = True
    direct_back = staticmethod(operators.linear_t)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        super().__init__(structure, transpose)
        if native.loaded() and plain(self.arrays[2]):  # else in a trace, or of fake tensors
            number = torch.ops.gossamer.rows_register(*self.arrays, *self.sizes)
            self.call, self.direct = _by_number(number, self.rows), _direct(number, self.rows)
            weakref.finalize(self, native.forget, number).atexit = False

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        if self.direct is not None:
            function, number, rows = self.direct
            out = function(values, x, bias, number, rows, activation)
            if out is not None:
                return out
        return super().forward(x, values, bias, activation, feature_major)

    @staticmethod
    def arguments(structure: Structure) -> tuple[Any, ...]:
        return operators.rows_of(structure)

    def convolve(
        self, images: Tensor, values: Tensor, bias: Tensor | None, window: tuple[int, ...], activation: int = 0
    ) -> Tensor:
        shift = None if bias is None else as_native(bias)
        operands = as_native(values), as_native(images.contiguous()), shift
        out = torch.ops.gossamer.rows_conv2d(*self.arrays, *operands, *self.sizes, *window, activation)
        return out.to(images.dtype)

    def clean(self, values: Tensor) -> Tensor:
        return torch.where(operators.used(self.arrays[2], *self.sizes[3:6]), values, 0)


def _by_number(number: int, rows: int) -> Callable[..., Tensor]:
    """Return the forward operator of rows that are registered: 1.5 us less than with all arguments."""
    op = torch.ops.gossamer.rows_registered.default._op

    def call(values: Tensor, x: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        return op(values, x, bias, number, rows, activation)

    return call


def _direct(number: int, rows: int) -> tuple[Callable[..., Any], int, int]:
    """Return the same without torch's dispatcher: a function that may answer None, and what it needs to know."""
    return native.direct("rows"), number, rows


register_gradients(operators._library, RowsProduct, arrays=3, block=0)
