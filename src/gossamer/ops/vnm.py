"""linear and matmul with a packed V:N:M weight: sparse tensor cores on a GPU, right everywhere."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor, tracked, values_of
from gossamer.formats import Dense, PackedVNM
from gossamer.kernels.transpose import feature_major, token_major
from gossamer.kernels.vnm import cuda as vnm_cuda
from gossamer.kernels.vnm.operators import Vnm, vnm_of

_linear_op = torch.ops.gossamer.vnm_linear.default
_watched = torch._C._len_torch_dispatch_stack


@implements(F.linear, (Dense, PackedVNM, Dense))
def linear_vnm(input: Tensor, weight: SparseTensor, bias: Tensor | None = None) -> Any:
    """Return x @ weight.T + bias; feature-major if x is."""
    return fused_linear(input, weight, bias, 0)


def fused_linear(
    input: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int, turned: bool | None = None
) -> Any:
    """Return act(x @ weight.T + bias), the activation in the kernel; NotImplemented where types or sizes don't fit.

    ``turned`` asks for a feature-major (True) or token-major (False) result; None leaves it as x is.
    """
    shape, given = weight._dense_shape, input.shape
    if len(shape) != 2 or not given or given[-1] != shape[1] or input.dtype is not weight._values.dtype:
        return NotImplemented
    if len(given) == 2:
        return _product(input, weight, bias, activation, turned)
    out = _product(input.reshape(-1, shape[1]), weight, bias, activation, turned)
    return out.reshape(*given[:-1], shape[0])


@implements(torch.matmul, (PackedVNM, Dense))
def matmul_vnm(input: SparseTensor, other: Tensor) -> Any:
    """Return weight @ x for a vector or matrix x."""
    if not isinstance(input, SparseTensor) or isinstance(other, SparseTensor):
        return NotImplemented
    shape = input._dense_shape
    if len(shape) != 2 or other.dim() not in (1, 2) or other.shape[0] != shape[1] or input.grad_format is not None:
        return NotImplemented
    if other.dtype is not input._values.dtype:
        return NotImplemented
    if other.dim() == 1:
        return _product(other.view(1, -1), input, None, 0)[0]
    return _product(other.t(), input, None, 0).t().contiguous()


for _name in ("mm", "mv", "__matmul__"):
    implements(_name, (PackedVNM, Dense))(matmul_vnm)


def _product(
    x: Tensor, weight: SparseTensor, bias: Tensor | None, activation: int, turned: bool | None = None
) -> Tensor:
    if torch.compiler.is_compiling():
        shared, meta, sizes = vnm_of(weight.structure)
        out = _linear_op(values_of(weight), shared, meta, x, bias, *sizes, activation)
    else:
        shared, meta, sizes = _arrays(weight)
        values = weight._values
        if _wants_gradient(x, weight, bias):
            out = _linear_op(values_of(weight), shared, meta, x, bias, *sizes, activation)
        elif type(x) is Tensor and type(values) is Tensor and values.is_cuda and not _watched():
            # the dispatcher is for traces and tensors of other kinds; plain ones go straight to the kernel, 5 us sooner
            return vnm_cuda.linear(values, shared, meta, x, bias, *sizes, activation, turned)
        else:
            out = _linear_op(values, shared, meta, x, bias, *sizes, activation)
    return out if turned is None else feature_major(out) if turned else token_major(out)


def _arrays(weight: SparseTensor) -> Vnm:
    structure = weight._structure
    known = structure.__dict__.get("_vnm")
    if known is None:
        known = structure.__dict__["_vnm"] = vnm_of(structure)
    return known


def _wants_gradient(x: Tensor, weight: SparseTensor, bias: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    return x.requires_grad or tracked(weight) or (bias is not None and bias.requires_grad)
