"""Packed rows on a GPU: converted to a format that is fast on a GPU."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor
from gossamer.formats import CSR, Format, PackedNM, PackedVNM, Structure
from gossamer.formats.packed import PackedRows
from gossamer.kernels.csr.product import CsrProduct
from gossamer.kernels.product import Case, Product
from gossamer.kernels.vnm.product import VnmProduct


class ElsewhereProduct(Product):
    """Packed rows on a GPU: 2:4 by the tensor cores, others by the kernel of compressed rows; gradients as any format.

    The formats of the CPU kernels have their bytes in an order that a GPU reads slowly: a kernel that took Condensed as
    it is needed four times as long as that of CSR on an H200.
    """

    formats = (PackedRows,)

    def __init__(self, structure: Structure, transpose: bool) -> None:
        assert isinstance(structure.format, PackedRows)
        self.structure, self.transpose = structure, transpose
        self.rows, self.cols = structure.format.matrix_sizes(structure.shape)

    @staticmethod
    def takes(case: Case) -> str | None:
        if case.device == "cpu":
            return "the weight is on a CPU"
        if case.transpose or case.turned:
            return "the values are packed along the other dimension"
        return "a trace can't keep a converted copy" if case.traced else None

    @cached_property
    def _any(self) -> CsrProduct:
        return CsrProduct(self.structure, False)

    def forward(
        self, x: Tensor, values: Tensor, bias: Tensor | None, activation: int = 0, feature_major: bool | None = None
    ) -> Tensor:
        format = self.structure.format
        two_four = isinstance(format, PackedNM) and (format.n, format.m) == (2, 4)
        target = PackedVNM("all", 2, 4) if two_four else CSR()
        read, kernel = read_as(values, self.structure, target, VnmProduct if two_four else CsrProduct)
        return kernel.forward(x, read._values, bias, activation, feature_major)

    def back(self, grad: Tensor, values: Tensor) -> Tensor:
        return self._any.back(grad, values)

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        return self._any.sample(left, right)

    def clean(self, values: Tensor) -> Tensor:
        return self._any.clean(values)


def read_as(
    values: Tensor, structure: Structure, format: Format, family: type[Product]
) -> tuple[SparseTensor, Product]:
    """Return a weight in another format and its product; made once for these values, and kept with their structure."""
    version = None if values.is_inference() else values._version  # tensors of inference mode have no version counter
    known: _Read | None = structure.memo.get("elsewhere")
    # the tensor itself, not its address: a later tensor may get the same address
    if known is None or version is None or known.source() is not values or known.version != version:
        with torch.no_grad():
            read = SparseTensor(values.detach(), structure).to_format(format)
        known = _Read(weakref.ref(values), version, read, family(read.structure, False))
        structure.memo.keep("elsewhere", known)
    return known.weight, known.product


class _Read(NamedTuple):
    """A weight in another format, and of which values it was made."""

    source: Any
    version: int | None
    weight: SparseTensor
    product: Product
