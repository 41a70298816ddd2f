"""The products of packed V:N:M, as torch operators: schemas, fake functions, gradients, and the CPU.

Three operators, each in the others' gradients, so that they differentiate as often as one likes. ``A`` are the values
and arrays of :class:`gossamer.formats.PackedVNM`; v is 0 for "all":

- ``vnm_linear``: act(x @ A.T + bias) for x [tokens, cols]; the result is token-major or feature-major as x is.
  ``vnm_forward`` is the same for calls that autograd has no part in; ``vnm_linear_slow`` is what both are in Python
  on a GPU, where ``native/cuda/launch.cpp`` launches what it has seen before without it,
- ``vnm_decode``: A, dense,
- ``vnm_sample``: a dense matrix at the places of A.

On a CPU they are right, and no more; on a GPU :mod:`gossamer.kernels.vnm.cuda` has kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.formats import PackedVNM, Structure
from gossamer.formats.keys import ravel
from gossamer.kernels.product import activated

_SIZES = "int rows, int cols, int v, int m"
_library = torch.library.Library("gossamer", "FRAGMENT")
for _name in ("vnm_linear", "vnm_forward", "vnm_linear_slow"):
    _tensors = "Tensor values, Tensor shared, Tensor meta, Tensor x, Tensor? bias"
    _library.define(f"{_name}({_tensors}, {_SIZES}, int activation) -> Tensor")
_library.define(f"vnm_decode(Tensor values, Tensor shared, Tensor meta, {_SIZES}) -> Tensor")
_library.define(f"vnm_sample(Tensor dense, Tensor shared, Tensor meta, {_SIZES}) -> Tensor")


class Vnm(NamedTuple):
    """The arrays and sizes of a packed weight, in the order of the operators' arguments."""

    shared: Tensor
    meta: Tensor
    sizes: tuple[int, int, int, int]  # rows, cols, v (0: all), m


def vnm_of(structure: Structure) -> Vnm:
    """Return what the operators take, of a structure in packed V:N:M."""
    format, arrays = structure.format, structure.arrays
    assert isinstance(format, PackedVNM)
    rows, cols = format.group_sizes(structure.shape)
    return Vnm(arrays["cols1"], arrays["meta1"], (rows, cols, 0 if format.v == "all" else format.v, format.m))


def columns_of(shared: Tensor, m: int) -> Tensor:
    """Return the columns that all rows share, in the order of the compacted ones.

    Examples
    --------
    >>> import torch
    >>> columns_of(torch.tensor([[[0, 1, 2, 7], [3, 4, 5, 6]]], dtype=torch.uint8), 8)
    tensor([ 0,  1,  2,  7, 11, 12, 13, 14])
    """
    groups = torch.arange(shared.shape[1], device=shared.device)[:, None] * m
    return (shared[0].long() + groups).reshape(-1)


def feature_major(x: Tensor) -> bool:
    """Is a matrix of tokens stored feature by feature (a transposed view), and not token by token?

    Examples
    --------
    >>> import torch
    >>> feature_major(torch.zeros(8, 3)), feature_major(torch.zeros(3, 8).t())
    (False, True)
    """
    return x.stride(1) != 1 and x.stride(0) == 1 and x.shape[0] > 1


def empty_result(x: Tensor, rows: int, turned: bool | None = None) -> Tensor:
    """Return memory for a result with these features: in the order of x, or feature-major if ``turned``.

    Lines of a feature-major one start at multiples of 8.

    Examples
    --------
    >>> import torch
    >>> empty_result(torch.zeros(5, 64), 32).stride(), empty_result(torch.zeros(64, 5).t(), 32).stride()
    ((32, 1), (1, 8))
    """
    tokens = x.shape[0]
    if feature_major(x) if turned is None else turned:
        lead = (tokens + 7) // 8 * 8
        return x.new_empty((rows, lead)).as_strided((tokens, rows), (1, lead))
    return x.new_empty((tokens, rows))


def _places(shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> tuple[Tensor, Tensor | None]:
    """Row-major number of every place of the values in the dense matrix, and which are inside it (None: all)."""
    format = PackedVNM(v or "all", 2, m)
    structure = Structure(format, (rows, cols), {"cols1": shared, "meta1": meta}, meta.device)
    coords, valid = structure.positions()
    return ravel(format.from_levels(coords, (rows, cols)), (rows, cols)), valid


def decode(values: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the dense matrix, by torch's own operators on any device."""
    keys, valid = _places(shared, meta, rows, cols, v, m)
    flat = values.new_zeros(rows * cols)
    if valid is not None:
        keys, values = keys[valid], values[valid]
    return flat.index_put_((keys,), values).view(rows, cols)


def sample(dense: Tensor, shared: Tensor, meta: Tensor, rows: int, cols: int, v: int, m: int) -> Tensor:
    """Return the values at the places of a packed matrix, by torch's own operators on any device."""
    keys, valid = _places(shared, meta, rows, cols, v, m)
    if valid is None:
        return dense.reshape(-1)[keys]
    values = dense.new_zeros(keys.numel())
    values[valid] = dense.reshape(-1)[keys[valid]]
    return values


def linear(
    values: Tensor, shared: Tensor, meta: Tensor, x: Tensor, bias: Tensor | None, *sizes_and_activation: int
) -> Tensor:
    """Return act(x @ A.T + bias), over a dense copy."""
    *sizes, activation = sizes_and_activation
    out = activated(F.linear(x, torch.ops.gossamer.vnm_decode(values, shared, meta, *sizes), bias), activation)
    return empty_result(x, sizes[0]).copy_(out)


_library.impl("vnm_linear", linear, "CPU")
_library.impl("vnm_forward", linear, "CPU")
for _name in ("vnm_forward", "vnm_linear_slow"):
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")
_library.impl("vnm_decode", decode, "CPU")
_library.impl("vnm_sample", sample, "CPU")


@torch.library.register_fake("gossamer::vnm_linear", lib=_library)
@torch.library.register_fake("gossamer::vnm_forward", lib=_library)
def _(values: Any, shared: Any, meta: Any, x: Tensor, bias: Any, rows: int, *rest: int) -> Tensor:
    return empty_result(x, rows)


@torch.library.register_fake("gossamer::vnm_decode", lib=_library)
def _(values: Tensor, shared: Any, meta: Any, rows: int, cols: int, *rest: int) -> Tensor:
    return values.new_empty((rows, cols))


@torch.library.register_fake("gossamer::vnm_sample", lib=_library)
def _(dense: Tensor, shared: Any, meta: Tensor, *sizes: int) -> Tensor:
    return dense.new_empty(meta.shape[0] * 16)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, ctx.rest = [v for v in inputs if not isinstance(v, int)], [v for v in inputs if isinstance(v, int)]
    ctx.save_for_backward(*tensors)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    values, shared, meta, x, bias = ctx.saved_tensors
    *sizes, activation = ctx.rest
    if activation:
        raise NotImplementedError("a fused activation has no gradient: apply it after the product")
    needs = ctx.needs_input_grad
    decoded, sampled = torch.ops.gossamer.vnm_decode, torch.ops.gossamer.vnm_sample
    grad_values = sampled((grad.t() @ x).contiguous(), shared, meta, *sizes) if needs[0] else None
    grad_x = grad @ decoded(values, shared, meta, *sizes) if needs[3] else None
    grad_bias = grad.sum(0) if bias is not None and needs[4] else None
    return (grad_values, None, None, grad_x, grad_bias, *(None,) * 5)


def _decode_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, shared, meta = ctx.saved_tensors
    return (torch.ops.gossamer.vnm_sample(grad.contiguous(), shared, meta, *ctx.rest), *(None,) * 6)


def _sample_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    _, shared, meta = ctx.saved_tensors
    return (torch.ops.gossamer.vnm_decode(grad.contiguous(), shared, meta, *ctx.rest), *(None,) * 6)


for _name, _backward in (
    ("vnm_linear", _linear_backward),
    ("vnm_decode", _decode_backward),
    ("vnm_sample", _sample_backward),
):
    torch.library.register_autograd(f"gossamer::{_name}", _backward, setup_context=_save, lib=_library)
