"""How a SparseTensor and its values work with autograd.

Everything else is written with these three functions:

- :func:`values_of` takes the values out (backward: the gradient is a SparseTensor of the same pattern),
- :func:`build` puts values in (backward: the gradient at the stored positions),
- :func:`gather` reads any tensor at the stored positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.compiler.convert import tensors as compiled
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import entries, read, scatter
from gossamer.formats import Dense, Format, Structure
from gossamer.formats.values import cleared, placed, summed
from gossamer.kernels.product import TRANSFORMED


class Values(torch.autograd.Function):
    """The values of a tensor, whose gradient has its pattern."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> Tensor:
        ctx.tensor = tensor
        # the tensor may have another pattern when backward runs, but a trace reads the arrays from it
        ctx.structure = None if torch.compiler.is_compiling() else tensor._structure
        return tensor._component("_values").view_as(tensor._values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> SparseTensor:
        structure = ctx.tensor.structure if ctx.structure is None else ctx.structure
        valid = structure.valid()
        return SparseTensor(grad if valid is None else cleared(grad, valid), structure)


class _Build(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, structure: Structure) -> SparseTensor:
        ctx.structure = structure
        return SparseTensor(values.view_as(values), structure)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return gather(grad, ctx.structure), None


class ToDense(torch.autograd.Function):
    """Dense, with a gradient at every position: for tensors whose ``grad_format`` is Dense."""

    @staticmethod
    def forward(ctx: Any, tensor: SparseTensor) -> Tensor:
        return scatter(tensor._values, tensor.structure)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class WantsDenseGradient(RuntimeError):  # noqa: N818 - the name says what the tensor requests
    """A tensor whose gradient is wanted at every position was about to be read at the stored ones only."""


def tracked(tensor: Tensor) -> bool:
    """Does autograd follow this tensor here? (Asked below torch functions, which cost microseconds a question.)"""
    if not torch.is_grad_enabled():
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return tensor.requires_grad


def wants_dense_gradient(value: Any) -> bool:
    """Is it a sparse tensor whose gradient is recorded here, at every position?"""
    return isinstance(value, SparseTensor) and value.grad_format is not None and tracked(value)


def values_of(tensor: SparseTensor) -> Tensor:
    """Return the values of a tensor, as plain torch; the gradient that comes back has the tensor's pattern."""
    if tracked(tensor) and not torch.compiler.is_exporting():
        if tensor.grad_format is not None:
            raise WantsDenseGradient("the gradient is wanted at every position: compute with t.to_dense()")
        if torch._C._are_functorch_transforms_active():
            raise NotImplementedError(TRANSFORMED)
        return Values.apply(tensor)
    return tensor._component("_values")


def build(values: Tensor, structure: Structure) -> SparseTensor:
    """Return a tensor with these values; the padding must be zero."""
    if torch.is_grad_enabled() and values.requires_grad:
        return _Build.apply(values, structure)
    return SparseTensor(values, structure)


def entries_of(tensor: SparseTensor) -> tuple[Tensor, Tensor]:
    """Row-major number and value of each stored entry, in storage order."""
    keys, where = entries(tensor.structure)
    values = values_of(tensor).reshape(-1)
    return keys, values if where is None else values[where]


def from_entries(keys: Tensor, values: Tensor, shape: Sequence[int], format: Format) -> Tensor:
    """Build a tensor from entries in any order; entries with the same key are summed."""
    if isinstance(format, Dense):
        flat = values.new_zeros(torch.Size(shape).numel())
        return flat.index_put((keys,), values).view(shape)
    made = compiled.from_entries(keys, values, shape, format)
    if made is not None:
        return build(*made)
    if keys.numel() > 1 and not bool((keys[1:] > keys[:-1]).all()):
        keys, order = torch.sort(keys, stable=True)
        values = values[order]
        if not bool((keys[1:] > keys[:-1]).all()):
            keys, group = torch.unique_consecutive(keys, return_inverse=True)
            values = summed(values, group, keys.numel())
    structure, place = Structure.from_keys(format, keys, shape)
    return build(placed(values, place, structure), structure)


def gather(tensor: Tensor, structure: Structure) -> Tensor:
    """Read any tensor (dense or sparse) at the stored positions: values of that structure."""
    if isinstance(tensor, SparseTensor):
        if tensor.structure.same(structure):
            return values_of(tensor)
        return _gather_sparse(tensor, structure)
    return read(tensor, structure)


def _gather_sparse(tensor: SparseTensor, structure: Structure) -> Tensor:
    traced, shape = torch.compiler.is_compiling(), structure.value_shape
    where = wanted = None
    if traced:  # a trace can't count the entries: padding is moved to the end and read as zeros
        (have, real), values = tensor.structure.places(), values_of(tensor).reshape(-1)
        have = have if real is None else have.masked_fill(~real, tensor.structure.shape.numel())
        keys, wanted = structure.places()
    else:
        have, values = entries_of(tensor)
        keys, where = entries(structure)
    if have.numel() == 0:
        return values.new_zeros(shape)
    order = torch.argsort(have)
    have, values = have[order], values[order]
    found = torch.searchsorted(have, keys).clamp(max=have.numel() - 1)
    hit = have[found] == keys
    taken = torch.where(hit if wanted is None else hit & wanted, values[found], 0)
    return taken.reshape(shape) if traced else placed(taken, where, structure)
