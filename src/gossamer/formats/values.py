"""Values of a structure, as plain tensors: from entries, to and from dense, with zeros in the padding."""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.formats.structure import Structure


def summed(values: Tensor, group: Tensor, groups: int) -> Tensor:
    """Add up the values of each group, in their order; those of half precision in float32."""
    if values.dtype == torch.bool:
        return summed(values.byte(), group, groups) > 0
    wide = torch.float32 if values.dtype in (torch.float16, torch.bfloat16) else values.dtype
    out = torch.zeros((groups, *values.shape[1:]), dtype=wide, device=values.device)
    return out.index_add(0, group, values.to(wide)).to(values.dtype)


def placed(entries: Tensor, place: Tensor | None, structure: Structure) -> Tensor:
    """Values of a structure from its entries: each at its place, zeros in the padding."""
    shape = structure.value_shape
    if place is None:
        return entries.reshape(shape)
    flat = entries.new_zeros(torch.Size(shape).numel())
    return flat.index_put((place,), entries).view(shape)


def scatter(values: Tensor, structure: Structure) -> Tensor:
    """Return the dense tensor with these values."""
    if structure.plain:
        return values.reshape(structure.shape).clone()
    flat = values.reshape(-1)
    out = torch.zeros(structure.shape.numel(), dtype=values.dtype, device=values.device)
    if torch.compiler.is_compiling() and out.numel():  # a trace can't count the entries: padding adds its zeros at 0
        return out.index_put((structure.places()[0],), flat, accumulate=True).view(structure.shape)
    keys, where = structure.entries()
    return out.index_put((keys,), flat if where is None else flat[where]).view(structure.shape)


def read(tensor: Tensor, structure: Structure) -> Tensor:
    """Read an ordinary tensor at the stored positions: values of that structure."""
    if structure.plain:
        valid = structure.valid()
        values = tensor.reshape(structure.value_shape)
        return values if valid is None else cleared(values, valid)
    if torch.compiler.is_compiling() and structure.shape.numel():
        keys, valid = structure.places()
        flat = tensor.reshape(-1)[keys]
        return (flat if valid is None else flat.masked_fill(~valid, 0)).reshape(structure.value_shape)
    keys, where = structure.entries()
    return placed(tensor.reshape(-1)[keys], where, structure)


def mask_padding(values: Tensor, structure: Structure, inplace: bool = False) -> Tensor:
    """Set the padding to zero."""
    valid = structure.valid()
    if valid is None:
        return values
    return cleared(values, valid, inplace)


#: Integers of the size of a floating-point number, in bytes.
BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def cleared(values: Tensor, valid: Tensor, inplace: bool = False) -> Tensor:
    """Values with zeros where ``valid`` is False.

    Computed as integers times 0 or 1, so that NaN and inf become 0 too. On a CPU this is 4.7 times as fast as
    ``masked_fill``, which autograd and traces use.
    """
    if values.is_cuda and values.is_floating_point() and not inplace:
        return torch.where(valid, values, 0)
    plain = type(values) is Tensor and values.dtype.is_floating_point and values.element_size() in BITS
    if not plain or torch.compiler.is_compiling() or (torch.is_grad_enabled() and values.requires_grad):
        return values.masked_fill_(~valid, 0) if inplace else values.masked_fill(~valid, 0)
    bits = values.detach().view(BITS[values.element_size()])
    if not inplace:
        return (bits * valid).view(values.dtype)
    bits.mul_(valid)
    return values


#: Types that torch.count_nonzero takes: not float8, nor unsigned integers of more than a byte.
_COUNTED = frozenset({
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
})  # fmt: skip


def share_of_zeros(tensor: Tensor) -> float:
    """Sparsity of a dense tensor, as it is reported: its zeros, of matrices and tensors of more dimensions only.

    Biases and other vectors often start as zeros, and are not sparse for that.

    Examples
    --------
    >>> share_of_zeros(torch.eye(4)), share_of_zeros(torch.zeros(4))
    (0.75, 0.0)
    """
    if tensor.dim() < 2 or tensor.numel() == 0 or tensor.is_meta:
        return 0.0
    if tensor.dtype not in _COUNTED:
        tensor = tensor.double()
    return 1 - int(torch.count_nonzero(tensor)) / tensor.numel()


def is_computed_from(name: str) -> bool:
    """Is a weight computed from the tensor of this name, by a parametrization? Its zeros are not those of the weight.

    Examples
    --------
    >>> is_computed_from("0.parametrizations.weight.original"), is_computed_from("0.weight")
    (True, False)
    """
    return ".parametrizations." in f".{name}"
