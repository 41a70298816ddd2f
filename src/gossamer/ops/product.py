"""The product of tokens and a sparse matrix: the one operator below linear, matmul and their family, and convolutions.

:func:`product` works on plain tensors, for modules that keep the values and the structure of their weight apart;
:func:`multiply` on a SparseTensor, for torch's operators. Which family of kernels computes it is decided by the table,
under the name ``"product"``: a family is registered with its ``takes`` as the guard.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gossamer.core.decide import Decision, after_refusal, by_table
from gossamer.core.join import build, values_of
from gossamer.core.table import Operator, implements, name_of
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Structure
from gossamer.kernels import product as kernels
from gossamer.kernels.bitmap.product import BitmapProduct
from gossamer.kernels.blocks.product import BlocksProduct
from gossamer.kernels.csr.product import CsrProduct
from gossamer.kernels.dense.product import DenseProduct
from gossamer.kernels.meta.product import ELSEWHERE, MetaProduct
from gossamer.kernels.product import CODES, Case, Product, activated
from gossamer.kernels.rows.product import RowsProduct
from gossamer.kernels.tiles.product import TilesProduct
from gossamer.kernels.vnm.product import VnmProduct
from gossamer.ops.elsewhere import ElsewhereProduct

Activation = Literal["relu", "gelu", "silu"]
_PRODUCT = Operator("product")


def product(
    x: Tensor,
    values: Tensor,
    structure: Structure,
    bias: Tensor | None = None,
    activation: Activation | None = None,
    *,
    transpose: bool = False,
    feature_major: bool | None = None,
) -> Tensor:
    """Return act(x @ W.T + bias) for tokens x [..., cols] and a matrix W given by its values and its structure.

    Differentiable in x, values and bias. In a trace (torch.compile, export) the structure may be built from buffers in
    the trace itself.

    Parameters
    ----------
    x
        Tokens, of the type of the values.
    values, structure
        The matrix: its values as the format stores them, with zeros in the padding, and where they are. A structure of
        more than two dimensions is a matrix of its first dimension and all others.
    bias
        One number for each row of W, or None.
    activation
        ``"relu"``, ``"gelu"`` (by erf), ``"silu"`` or None; in the kernel where there is one and no gradient is needed.
    transpose
        Multiply by the transpose: act(x @ W + bias).
    feature_major
        The order of the result in memory; None leaves it to the kernel.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.from_dense(torch.tensor([[0., 3.], [4., 0.]]), gs.CSR())
    >>> product(torch.tensor([[1., 2.]]), w.values(), w.structure, activation="relu")
    tensor([[6., 4.]])
    """
    code = CODES[activation]
    kernel = kernel_of(x, values, structure, transpose)
    if x.dim() == 0 or x.shape[-1] != kernel.cols:
        raise ValueError(f"x has shape {tuple(x.shape)}; its last dimension must be {kernel.cols}, as W has it")
    if torch.compiler.is_compiling():
        fused = code if not kernels.recorded() else 0
        return activated(kernel.traced(x, values, bias, fused), 0 if fused else code)
    if kernels.needed(x, values, bias):
        return activated(kernels.record(x, values, bias, kernel, feature_major), code)
    return kernel.forward(x, values, bias, code, feature_major)


def multiply(
    x: Tensor,
    weight: SparseTensor,
    bias: Tensor | None = None,
    *,
    transpose: bool = False,
    feature_major: bool | None = None,
) -> Tensor:
    """Return x @ weight.T + bias (or x @ weight + bias), as one node of autograd."""
    if torch.compiler.is_compiling():
        return product(x, values_of(weight), weight.structure, bias, transpose=transpose)
    values = weight._values
    kernel = kernel_of(x, values, weight._structure, transpose)
    if torch.is_grad_enabled():
        return apply(x, weight, bias, kernel, feature_major)
    return kernel.forward(x, values, bias, 0, feature_major)


def kernel_of(x: Tensor, values: Tensor, structure: Structure, transpose: bool = False) -> Product:
    """Return the product of this matrix by the family of kernels that takes it; decided once, kept by the structure."""
    if x.dtype is not values.dtype:
        raise TypeError(f"x is {x.dtype} and the values are {values.dtype}: a product needs one type")
    if torch.compiler.is_compiling():
        return family(*case_of(values, structure, transpose))(structure, transpose)
    key = ("product", transpose, values.dtype)
    known: Product | None = structure.memo.get(key)
    if known is None:
        known = family(*case_of(values, structure, transpose))(structure, transpose)
        structure.memo.keep(key, known)
    return known


def case_of(values: Tensor, structure: Structure, transpose: bool = False) -> Case:
    """Return what the choice of a family depends on."""
    format, traced = structure.format, torch.compiler.is_compiling()
    turned = format.order not in (None, (0, 1))
    return Case(type(format), turned, values.dtype, values.device.type, transpose, traced)


def choose(case: Case) -> Decision:
    """Decide which family of kernels computes a product; nothing is built."""
    return by_table(_PRODUCT, None, (case,), {})


def chosen(*case: Any) -> type[Product]:
    """Return the family of kernels that would compute a product (of a :class:`Case`); nothing is built."""
    return _FAMILIES[choose(Case(*case)).function]


def family(*case: Any) -> type[Product]:
    """Return the family of kernels that computes a product, with what it needs built and loaded."""
    decision = choose(Case(*case))
    made = decision.run()
    while made is NotImplemented:
        decision = after_refusal(decision)
        made = decision.run()
    return made


for _function in (chosen, family):  # of constants, one by one: a trace takes the answer as a constant
    _function._dynamo_marked_constant = True  # type: ignore[attr-defined]


def describe(weight: SparseTensor, transpose: bool = False) -> str:
    """Say which family of kernels multiplies, and why, for gs.explain."""
    decision = choose(case_of(weight._values, weight.structure, transpose))
    told = [(entry, reason) for entry, reason in decision.refused if reason != ELSEWHERE]
    refused = "".join(f"; {entry.signature} is not used: {reason}" for entry, reason in told)
    return f"multiplied by {name_of(decision.function)}{refused}"


class _Multiply(torch.autograd.Function):
    """x @ weight.T + bias for a SparseTensor: what autograd costs is paid once."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: SparseTensor, bias: Tensor | None, kernel: Product, feature_major: bool | None
    ) -> Tensor:
        values = weight._values
        ctx.save_for_backward(x, values)
        ctx.weight, ctx.structure, ctx.kernel = weight, weight._structure, kernel
        return kernel.forward(x, values, bias, 0, feature_major)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, values = ctx.saved_tensors
        kernel, weight, needs = ctx.kernel, ctx.weight, ctx.needs_input_grad
        if torch.is_grad_enabled() and weight.grad_format is None:
            values = values_of(weight)  # whose gradient is wanted too
        grad_x = kernels.back(grad, values, kernel) if needs[0] else None
        grad_weight: Tensor | None = None
        if needs[1] and weight.grad_format is not None:
            left, right = kernels.matrix_of_tokens(grad), kernels.matrix_of_tokens(x)
            grad_weight = (right.t() @ left if kernel.transpose else left.t() @ right).view(ctx.structure.shape)
        elif needs[1]:
            grad_weight = build(kernels.sample(grad, x, kernel), ctx.structure)
        return grad_x, grad_weight, kernels.matrix_of_tokens(grad).sum(0) if needs[2] else None, None, None


apply = kernels.lean(_Multiply)


# -- the families, the most general first

_FAMILIES: dict[Any, type[Product]] = {}


def _register(family: type[Product]) -> None:
    def made(case: Case) -> Any:
        return family if family.ready() else NotImplemented

    _FAMILIES[made] = family
    made.__module__, made.__qualname__ = family.__module__, family.__qualname__
    for format in family.formats:
        implements("product", (format,), when=family.takes)(made)


for _family in (
    CsrProduct, DenseProduct, BlocksProduct, RowsProduct, TilesProduct, ElsewhereProduct, VnmProduct, BitmapProduct,
    MetaProduct,
):  # fmt: skip
    _register(_family)
