"""Copies, casts, and tensors with the shape of another one (``zeros_like`` ...)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.copies import cloned, with_options_of
from gossamer.core.inplace import tell_lost
from gossamer.core.join import build, entries_of, from_entries, values_of
from gossamer.core.table import implements
from gossamer.core.tensor import SparseTensor
from gossamer.formats import Format
from gossamer.formats.values import mask_padding


@implements(torch.clone, (Format,))
def clone(input: SparseTensor, **kwargs: Any) -> SparseTensor:
    """Copy the values; the index arrays never change, so they are shared."""
    return cloned(input)


@implements("contiguous", (Format,))
def contiguous(input: SparseTensor, **kwargs: Any) -> SparseTensor:
    """Return the tensor itself: its values have one order, and it is the format's."""
    return input


@implements("data.get", (Format,))
def data(input: SparseTensor) -> SparseTensor:
    """Return the tensor cut off from autograd, sharing its values."""
    return input.detach()  # type: ignore[return-value]


@implements("data.set", (Format, Format))
def set_data(input: SparseTensor, value: Tensor) -> None:
    """Take the other's values, and its pattern if it has one."""
    with torch.no_grad():
        if isinstance(value, SparseTensor):
            input._values = value._values
            input._set_structure(value.structure)
        else:
            tell_lost(input, value)
            input.copy_(value)


@implements("to", (Format, Format))
def to(input: SparseTensor, *args: Any, **kwargs: Any) -> Any:
    """Change type or device."""
    kwargs.pop("memory_format", None)
    if args and isinstance(args[0], Tensor):
        like = args[0]
        args = (like.device, like.dtype, *args[1:])
    if not isinstance(input, SparseTensor):
        return input.to(*args, **kwargs)
    before = values_of(input)
    values = before.to(*args, **kwargs)
    if values is before:
        return input
    return with_options_of(build(values, input.structure.to(values.device)), input)


def _cast(name: str) -> Any:
    def run(input: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("memory_format", None)
        if name == "type_as":
            return to(input, args[0].dtype)
        values = getattr(values_of(input), name)(*args, **kwargs)
        return with_options_of(build(values, input.structure.to(values.device)), input)

    return run


for _name in (
    "float", "double", "half", "bfloat16", "int", "long", "short", "char", "byte", "bool", "cfloat", "cdouble", "chalf",
    "cpu", "cuda", "pin_memory", "type_as",
):  # fmt: skip
    implements(_name, (Format, Format))(_cast(_name))


def _like(name: str) -> Any:
    def run(input: SparseTensor, *args: Any, **kwargs: Any) -> SparseTensor:
        options = {k: v for k, v in kwargs.items() if k not in ("memory_format", "requires_grad", "layout")}
        values = getattr(torch, name)(input._values, *args, **options)
        out = build(mask_padding(values, input.structure), input.structure.to(values.device))
        return out.requires_grad_(bool(kwargs.get("requires_grad", False)))  # type: ignore[return-value]

    return run


for _name in ("zeros_like", "empty_like"):
    implements(_name, (Format,))(_like(_name))


def _dense_like(name: str) -> Any:
    def run(input: SparseTensor, *args: Any, **kwargs: Any) -> Tensor:
        kwargs = {k: v for k, v in kwargs.items() if k != "memory_format"}
        options = {"dtype": input._values.dtype, "device": input._values.device, **kwargs}
        return getattr(torch, name)(input._dense_shape, *args, **options)

    return run


# except in zeros_like, "like" is about shape and type: a tensor of ones has no zeros to omit
for _name, _maker in (("ones_like", "ones"), ("rand_like", "rand"), ("randn_like", "randn"), ("full_like", "full")):
    implements(_name, (Format,))(_dense_like(_maker))


def _new(name: str) -> Any:
    def run(input: SparseTensor, *args: Any, **kwargs: Any) -> Any:
        return getattr(input._values, name)(*args, **kwargs)

    return run


for _name in ("new_empty", "new_zeros", "new_ones", "new_full", "new_tensor"):
    implements(_name, (Format,))(_new(_name))


def _takes_item(input: SparseTensor) -> str | None:
    return None if input._dense_shape.numel() == 1 else "there is not one value"


@implements("item", (Format,), when=_takes_item)
def item(input: SparseTensor) -> Any:
    """Return the one value as a number."""
    return input.to_dense().item()


@implements("is_coalesced", (Format,))
def is_coalesced(input: SparseTensor) -> bool:
    """Entries are always sorted, and each is there once."""
    return True


@implements("coalesce", (Format,))
def coalesce(input: SparseTensor) -> SparseTensor:
    """Return the tensor without explicit zeros."""
    keys, values = entries_of(input)
    keep = values != 0
    return from_entries(keys[keep], values[keep], input._dense_shape, input.format.general())  # type: ignore[return-value]


def _takes_equal(input: Tensor, other: Tensor) -> str | None:
    both = isinstance(input, SparseTensor) and isinstance(other, SparseTensor)
    return None if both else "one of the tensors is dense"


@implements(torch.equal, (Format, Format), when=_takes_equal)
def equal(input: SparseTensor, other: SparseTensor) -> bool:
    """Are shape and all values the same, whatever the formats?"""
    if input._dense_shape != other._dense_shape or input._values.dtype != other._values.dtype:
        return False
    if input.structure.same(other.structure):
        return torch.equal(input._values, other._values)
    return not bool((input.detach() - other.detach()).any())
