"""F.linear with a sparse weight or input, and gs.linear: the same with an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core import table
from gossamer.core.join import tracked, wants_dense_gradient
from gossamer.core.look import dtype_of, shape_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Dense, Format
from gossamer.kernels.product import CODES, activated
from gossamer.kernels.transpose import feature_major, token_major
from gossamer.ops import product as products
from gossamer.ops.product import Activation, multiply

_PLAIN = frozenset({Tensor, torch.nn.Parameter})


def takes_linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    """Guard of a product with a matrix from the right: torch's own error comes from the dense path."""
    shape, dtype = shape_of(weight), dtype_of(input)
    if len(shape) != 2:
        return "the weight is not a matrix"
    if shape_of(input)[-1:] != shape[1:]:
        return "the last dimension of the input is not the number of columns of the weight"
    if dtype is not dtype_of(weight) or (bias is not None and dtype_of(bias) is not dtype):
        return "input, weight and bias have different types"
    if torch.compiler.is_compiling() and wants_dense_gradient(weight):
        return "in a trace, the gradient of the weight is wanted at every position"
    return None


def _describe(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> str:
    return products.describe(weight)


@implements(F.linear, (Dense, Format, Dense), when=takes_linear, detail=_describe)
def linear_sparse(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias for a sparse weight."""
    return multiply(input, weight, bias)


def _bind(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Callable[..., Tensor | None] | None:
    """Return what computes the next call with a weight of this structure and type; it answers None for another case."""
    structure, dtype, made = weight._structure, weight._values.dtype, table.version()
    kernel = structure.memo.get(("product", False, dtype))
    if kernel is None:
        return None
    cols, forward, apply, grad_enabled = kernel.cols, kernel.forward, products.apply, torch.is_grad_enabled
    direct, number, rows = kernel.direct or (_no_answer, 0, 0)

    def ready(x: Any, weight: SparseTensor, bias: Any = None) -> Tensor | None:
        values = weight._values
        if not grad_enabled() and table._version == made:
            out = direct(values, x, bias, number, rows, 0)  # which looks at types and shapes itself
            if out is not None:
                return out
        if type(x) is not Tensor or x.dtype is not dtype or values.dtype is not dtype or table._version != made:
            return None
        if not (bias is None or (type(bias) in _PLAIN and bias.dtype is dtype)):
            return None
        try:
            if x.shape[-1] != cols:
                return None
        except IndexError:  # no dimension
            return None
        return apply(x, weight, bias, kernel, None) if grad_enabled() else forward(x, values, bias)

    return ready


def _no_answer(*arguments: Any) -> None:
    """Stand for a kernel that can't be called directly."""


linear_sparse.bind = _bind  # type: ignore[attr-defined]


def _takes_sparse_input(input: Tensor, weight: Tensor, bias: Any = None) -> str | None:
    if wants_dense_gradient(input) or wants_dense_gradient(weight):
        return "the gradient of an operand is wanted at every position (grad_format)"
    return "the input has no dimension" if input.dim() < 1 else takes_linear(input, weight, bias)


@implements(F.linear, (Format, Format, Format), when=_takes_sparse_input)
def linear_sparse_input(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Return x @ weight.T + bias for a sparse x, such as a sparse activation."""
    tokens = input if input.dim() == 2 else input.reshape(-1, input.shape[-1])
    out = torch.matmul(tokens, weight.t())
    out = out.to_dense() if isinstance(out, SparseTensor) else out
    out = out if bias is None else out + bias
    return out.view(*input.shape[:-1], weight.shape[0])


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation | None = None) -> Tensor:
    """Return activation(input @ weight.T + bias): ``F.linear`` and an activation, in one kernel if possible.

    Packed formats apply the activation while the result is in registers, which saves a pass over it. For other formats,
    dense weights and calls that need a gradient, it is applied afterwards. The result is the same up to rounding.

    Parameters
    ----------
    input, weight, bias
        As in :func:`torch.nn.functional.linear`; the weight in any format, or dense.
    activation
        ``"relu"``, ``"gelu"`` (by erf, torch's default), ``"silu"``, or None.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 128), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> x = torch.randn(5, 128)
    >>> torch.equal(gs.linear(x, w, activation="relu"), torch.relu(torch.nn.functional.linear(x, w)))
    True
    """
    if activation not in CODES:
        raise ValueError(f"activation={activation!r} must be one of 'relu', 'gelu', 'silu', or None")
    if activation is None or not _fuses(input, weight, bias):
        return activated(F.linear(input, weight, bias), CODES[activation])
    assert isinstance(weight, SparseTensor)
    return products.product(input, weight._component("_values"), weight.structure, bias, activation)


def linear_in_order(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation | None, turned: bool
) -> Tensor:
    """:func:`linear` with a feature-major or token-major result, whatever the order of the input.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> w = gs.sparsify(torch.randn(64, 128), "2:4", format=gs.formats.PackedVNM("all", 2, 4))
    >>> linear_in_order(torch.randn(24, 128), w, None, None, turned=True).stride()
    (1, 24)
    """
    if _fuses(input, weight, bias) and not torch.compiler.is_compiling():
        assert isinstance(weight, SparseTensor)
        out = products.product(input, weight._values, weight.structure, bias, activation, feature_major=turned)
    else:
        out = linear(input, weight, bias, activation)
    return feature_major(out) if turned else token_major(out)


def _fuses(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """May product and activation be one call: a sparse weight, no gradient, no autocast, and shapes that fit?"""
    if not isinstance(weight, SparseTensor) or isinstance(input, SparseTensor) or isinstance(bias, SparseTensor):
        return False
    if torch._C._is_any_autocast_enabled() or takes_linear(input, weight, bias) is not None:
        return False
    # the gradient needs what came before the activation
    return not (torch.is_grad_enabled() and any(t is not None and tracked(t) for t in (input, weight, bias)))


__all__ = ["Activation", "linear", "linear_in_order"]
