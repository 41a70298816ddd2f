"""Products with compressed rows of blocks (BSR) on a CPU, by the native kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer import native
from gossamer.formats import BSR, Structure
from gossamer.kernels.blocks import operators
from gossamer.kernels.blocks.operators import Blocks, blocks_of
from gossamer.kernels.product import Back, Case, Linear, Product, Sample, needed, plain, recorded, with_rows
from gossamer.kernels.rows.operators import NATIVE
from gossamer.kernels.rows.product import as_native, has_kernels

_forward = torch.ops.gossamer.blocks_forward.default
_sample = torch.ops.gossamer.blocks_sample_forward.default


class BlocksProduct(Product):
    """A matrix of compressed rows of blocks."""

    formats = (BSR,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose = transpose
        self._bind(blocks_of(structure), structure.value_shape[1:])

    @classmethod
    def of(cls, blocks: Blocks, block: tuple[int, ...]) -> BlocksProduct:
        """Return the product of arrays and sizes as the operators get them."""
        made = cls.__new__(cls)
        made._bind(blocks, block)
        return made

    def _bind(self, blocks: Blocks, block: tuple[int, ...]) -> None:
        self.arguments, self.block = blocks, block
        self.rows, self.cols = blocks.sizes

    @classmethod
    def ready(cls) -> bool:
        return native.load()

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.turned != case.transpose:
            return "the blocks are stored along the other dimension"
        return has_kernels(case)

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        (pos, crd), (rows, cols) = self.arguments
        x = x if x.is_contiguous() else with_rows(x)
        if values.dtype in NATIVE:
            return _forward(pos, crd, values, x, bias, rows, cols, activation)
        shift = None if bias is None else bias.float()
        return _forward(pos, crd, values.float(), x.float(), shift, rows, cols, activation).to(x.dtype)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        (arrays, sizes), grad = self.arguments, with_rows(grad)
        function = operators.linear_t if plain(grad) else torch.ops.gossamer.blocks_linear_t
        return function(*arrays, as_native(values), as_native(grad), *sizes).to(grad.dtype)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        arrays, sizes = self.arguments
        sample = _sample if plain(left) else torch.ops.gossamer.blocks_sample
        pair = as_native(with_rows(left)), as_native(with_rows(right))
        return sample(*arrays, *pair, *sizes, *self.block).to(left.dtype)

    def clean(self, values: Tensor) -> Tensor:
        return values.contiguous()  # the kernels read no place outside of the matrix

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        (arrays, sizes), dtype = self.arguments, x.dtype
        op = torch.ops.gossamer.blocks_linear if recorded() else torch.ops.gossamer.blocks_forward
        bias = None if bias is None else as_native(bias)
        return op(*arrays, as_native(values), as_native(with_rows(x)), bias, *sizes, activation).to(dtype)


# -- gradients of the operators, for traces


def _linear_autograd(pos: Tensor, crd: Tensor, values: Tensor, x: Tensor, bias: Any, *rest: int) -> Tensor:
    if not needed(values, x, bias):
        return _forward(pos, crd, values, x, bias, *rest)
    *sizes, activation = rest
    if activation:
        raise NotImplementedError("a fused activation has no gradient: apply it after the product")
    kernel = BlocksProduct.of(Blocks((pos, crd), tuple(sizes)), values.shape[1:])  # type: ignore[arg-type]
    return Linear.apply(x, values, bias, kernel)


def _linear_t_autograd(pos: Tensor, crd: Tensor, values: Tensor, grad: Tensor, rows: int, cols: int) -> Tensor:
    if needed(values, grad):
        return Back.apply(grad, values, BlocksProduct.of(Blocks((pos, crd), (rows, cols)), values.shape[1:]))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.blocks_linear_t(pos, crd, values, grad, rows, cols)


def _sample_autograd(
    pos: Tensor, crd: Tensor, left: Tensor, right: Tensor, rows: int, cols: int, height: int, width: int
) -> Tensor:
    if needed(left, right):
        return Sample.apply(left, right, BlocksProduct.of(Blocks((pos, crd), (rows, cols)), (height, width)))
    return _sample(pos, crd, left, right, rows, cols, height, width)


operators._library.impl("blocks_linear", _linear_autograd, "Autograd")
operators._library.impl("blocks_linear_t", _linear_t_autograd, "Autograd")
operators._library.impl("blocks_sample", _sample_autograd, "Autograd")
