"""Operators on lists of tensors: what optimizers with ``foreach`` or ``fused``, and gradient scalers, call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.ops.registry import Operator
from gossamer.tensor import SparseTensor, gather, mask_padding

PREFIXES = ("_foreach_", "_fused_", "_amp_foreach_")


def call_list(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a list operator: in place at once on the values, otherwise one tensor at a time."""
    if operator.inplace:
        return _on_values(func, args, kwargs)
    return _one_by_one(operator.name.removeprefix("_foreach_"), args, kwargs)


def _one_by_one(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if name in ("addcmul", "addcdiv") and len(args) == 4:  # their scalar has no name in a list operator
        *args_, value = args
        args, kwargs = tuple(args_), {**kwargs, "value": value}
    single = getattr(torch.Tensor, name, None) or getattr(torch, name)
    every = range(len(args[0]))
    return [single(*(_item(a, i) for a in args), **{k: _item(v, i) for k, v in kwargs.items()}) for i in every]


def _item(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


def _on_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Lists that belong to sparse owners (the first list): all are read, and written, at the owner's positions."""
    owners = args[0]
    copies: list[tuple[Tensor, Tensor, SparseTensor]] = []

    def part(value: Any, owner: Any) -> Any:
        if not isinstance(owner, SparseTensor) or not isinstance(value, Tensor) or value.shape != owner._dense_shape:
            return value
        values = gather(value, owner.structure)
        if not (isinstance(value, SparseTensor) and values is value._values):
            copies.append((value, values, owner))
        return values

    def column(value: Any) -> Any:
        return [part(v, o) for v, o in zip(value, owners, strict=False)] if isinstance(value, (list, tuple)) else value

    with torch.no_grad():
        out = func(*(column(a) for a in args), **{k: column(v) for k, v in kwargs.items()})
        for owner in owners:
            if isinstance(owner, SparseTensor):
                mask_padding(owner._values, owner.structure, inplace=True)
        for target, values, owner in copies:  # state of another format than its weight: bring the results back
            target.copy_(SparseTensor(values, owner.structure))
    return out
