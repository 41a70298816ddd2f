"""Products with any matrix as compressed rows: what every format has, if nothing faster."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.formats import Format, Structure
from gossamer.formats.structure import Matrix
from gossamer.formats.values import mask_padding
from gossamer.kernels.csr import operators
from gossamer.kernels.product import Case, Linear, Product, Sample, activated, matrix_of_tokens, needed, plain, recorded


class CsrProduct(Product):
    """A matrix of compressed rows or columns; entries are taken out of the values if there is padding."""

    formats = (Format,)
    feature_major = True

    def __init__(self, structure: Structure, transpose: bool) -> None:
        self.transpose = transpose
        self._bind(structure, structure.matrix(), transpose)

    @classmethod
    def of(cls, pos: Tensor, crd: Tensor, rows: int, cols: int, transpose: bool) -> CsrProduct:
        """Return the product of compressed rows as the operators get them, or of their transpose."""
        made = cls.__new__(cls)
        made._bind(None, Matrix(pos, crd, rows, cols, False, None), transpose)
        return made

    def _bind(self, structure: Structure | None, matrix: Matrix, transpose: bool) -> None:
        self.structure, self.index = structure, matrix.index
        self.pos, self.crd = matrix.pos, matrix.crd
        self.flip = matrix.transposed != transpose  # is W the transpose of what the arrays describe?
        self.rows, self.cols = (matrix.cols, matrix.rows) if transpose else (matrix.rows, matrix.cols)
        self.stored = (self.cols, self.rows) if self.flip else (self.rows, self.cols)

    @staticmethod
    def takes(case: Case) -> str | None:
        return None

    def _entries(self, values: Tensor) -> Tensor:
        flat = values if values.dim() == 1 else values.reshape(-1)
        return flat if self.index is None else flat[self.index]

    def _spmm(self, values: Tensor, x: Tensor, flip: bool, tokens_first: bool) -> Tensor:
        # the dispatcher is for traces and tensors of other kinds; plain ones go straight to the kernel, 5 us sooner
        spmm = operators.spmm if type(x) is Tensor and plain(values) else torch.ops.gossamer.spmm
        return spmm(self.pos, self.crd, self._entries(values), *self.stored, flip, x, tokens_first)

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        out = self._spmm(values, matrix_of_tokens(x).t(), self.flip, not feature_major)
        out = out.t() if feature_major else out
        out = activated(out if bias is None else out.add_(bias), activation)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], self.rows)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        out = self._spmm(values, matrix_of_tokens(grad).t(), not self.flip, True)
        return out if grad.dim() == 2 else out.view(*grad.shape[:-1], self.cols)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        pair = matrix_of_tokens(left).t(), matrix_of_tokens(right).t()
        sddmm = operators.sddmm if plain(left) and plain(right) else torch.ops.gossamer.sddmm
        entries = sddmm(self.pos, self.crd, *self.stored, *(pair[::-1] if self.flip else pair))
        if self.structure is None:
            return entries
        if self.index is not None:
            flat = entries.new_zeros(torch.Size(self.structure.value_shape).numel())
            entries = flat.index_put((self.index,), entries)
        return self.clean(entries.view(self.structure.value_shape))

    def clean(self, values: Tensor) -> Tensor:
        return values if self.structure is None else mask_padding(values, self.structure)

    def traced(self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0) -> Tensor:
        spmm, tokens = torch.ops.gossamer.spmm, matrix_of_tokens(x)
        values = self.clean(values) if recorded() else values  # so that padding has no gradient
        out = spmm(self.pos, self.crd, self._entries(values), *self.stored, self.flip, tokens.t(), True)
        return activated(out if bias is None else out + bias, activation).view(*x.shape[:-1], self.rows)


# -- gradients of the operators, for traces


def _spmm_autograd(
    pos: Tensor, crd: Tensor, values: Tensor, rows: int, cols: int, transposed: bool, x: Tensor, tokens_first: bool
) -> Tensor:
    if needed(values, x):
        kernel = CsrProduct.of(pos, crd, rows, cols, transposed)
        out = Linear.apply(x.t(), values, None, kernel, not tokens_first)
        return out if tokens_first else out.t()
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.spmm(pos, crd, values, rows, cols, transposed, x, tokens_first)


def _sddmm_autograd(pos: Tensor, crd: Tensor, rows: int, cols: int, left: Tensor, right: Tensor) -> Tensor:
    if needed(left, right):
        return Sample.apply(left.t(), right.t(), CsrProduct.of(pos, crd, rows, cols, False))
    with torch._C._AutoDispatchBelowAutograd():
        return torch.ops.gossamer.sddmm(pos, crd, rows, cols, left, right)


operators._library.impl("spmm", _spmm_autograd, "Autograd")
operators._library.impl("sddmm", _sddmm_autograd, "Autograd")
