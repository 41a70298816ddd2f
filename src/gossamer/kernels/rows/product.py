"""Products with packed rows on a CPU, by the native kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import Structure
from gossamer.formats.packed import PackedRows
from gossamer.kernels.product import Back, Case, Linear, Product, Sample, needed, plain, recorded, with_rows
from gossamer.kernels.rows import operators
from gossamer.kernels.rows.operators import NATIVE, STORED, Rows, rows_of, used

_forward = torch.ops.gossamer.rows_forward.default
_sample = torch.ops.gossamer.rows_sample_forward.default


class RowsProduct(Product):
    """A matrix of packed rows."""

    formats = (PackedRows,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose = transpose
        self._bind(rows_of(structure))

    @classmethod
    def of(cls, rows: Rows) -> RowsProduct:
        """Return the product of arrays and sizes as the operators get them."""
        made = cls.__new__(cls)
        made._bind(rows)
        return made

    def _bind(self, rows: Rows) -> None:
        self.arguments = rows
        self.rows, self.cols = rows.sizes[:2]
        self.call = _bound(*rows.arrays, *rows.sizes)

    @classmethod
    def ready(cls) -> bool:
        return native.load()

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.turned != case.transpose:
            return "the values are packed along the other dimension"
        return has_kernels(case)

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        if not x.is_contiguous():
            x = with_rows(x)
        if values.dtype in NATIVE:
            return self.call(values, x, bias, activation)
        shift = None if bias is None else bias.float()
        return self.call(values.float(), x.float(), shift, activation).to(x.dtype)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        (arrays, sizes), grad = self.arguments, with_rows(grad)
        function = operators.linear_t if plain(grad) else torch.ops.gossamer.rows_linear_t
        return function(*arrays, as_native(values), as_native(grad), *sizes).to(grad.dtype)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        arrays, sizes = self.arguments
        sample = _sample if plain(left) else torch.ops.gossamer.rows_sample
        return sample(*arrays, as_native(with_rows(left)), as_native(with_rows(right)), *sizes).to(left.dtype)

    def clean(self, values: Tensor) -> Tensor:
        (_, _, crd), sizes = self.arguments
        return torch.where(used(crd, *sizes[3:6]), values, 0)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        (arrays, sizes), dtype = self.arguments, x.dtype
        op = torch.ops.gossamer.rows_linear if recorded() else torch.ops.gossamer.rows_forward
        bias = None if bias is None else as_native(bias)
        return op(*arrays, as_native(values), as_native(with_rows(x)), bias, *sizes, activation).to(dtype)


def as_native(t: Tensor) -> Tensor:
    """Return a tensor in a type that the kernels read."""
    return t if t.dtype in NATIVE else t.float()


def has_kernels(case: Case) -> str | None:
    """Return None if there are native kernels for a type and device, else the reason why not.

    Nothing is built here: kernels that are not loaded yet are built when they first run.
    """
    if case.device != "cpu":
        return "its kernels run on a CPU"
    if case.dtype not in STORED:
        return "its kernels take float32, bfloat16 and float16"
    return "the native kernels could not be built" if native.loaded() is False else None


def _bound(
    row: Tensor | None, pos: Tensor | None, crd: Tensor,
    rows: int, cols: int, block: int, tile: int, window: int, per: int,
) -> Callable[[Tensor, Tensor, Tensor | None, int], Tensor]:  # fmt: skip
    """Return the forward operator with all arguments that stay the same."""
    op = _forward._op  # what OpOverload.__call__ calls

    def call(values: Tensor, x: Tensor, bias: Tensor | None, activation: int) -> Tensor:
        return op(row, pos, crd, values, x, bias, rows, cols, block, tile, window, per, activation)

    return call


# -- gradients of the operators, for traces


def _linear_autograd(row: Any, pos: Any, crd: Tensor, values: Tensor, x: Tensor, bias: Any, *rest: int) -> Tensor:
    if not needed(values, x, bias):
        return _forward(row, pos, crd, values, x, bias, *rest)
    *sizes, activation = rest
    if activation:
        raise NotImplementedError("a fused activation has no gradient: apply it after the product")
    return Linear.apply(x, values, bias, RowsProduct.of(Rows((row, pos, crd), tuple(sizes))))  # type: ignore[arg-type]


def _linear_t_autograd(row: Any, pos: Any, crd: Tensor, values: Tensor, grad: Tensor, *sizes: int) -> Tensor:
    if needed(values, grad):
        return Back.apply(grad, values, RowsProduct.of(Rows((row, pos, crd), sizes)))  # type: ignore[arg-type]
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.rows_linear_t(row, pos, crd, values, grad, *sizes)


def _sample_autograd(row: Any, pos: Any, crd: Tensor, left: Tensor, right: Tensor, *sizes: int) -> Tensor:
    if needed(left, right):
        return Sample.apply(left, right, RowsProduct.of(Rows((row, pos, crd), sizes)))  # type: ignore[arg-type]
    return _sample(row, pos, crd, left, right, *sizes)


operators._library.impl("rows_linear", _linear_autograd, "Autograd")
operators._library.impl("rows_linear_t", _linear_t_autograd, "Autograd")
operators._library.impl("rows_sample", _sample_autograd, "Autograd")
