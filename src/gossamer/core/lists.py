"""Operators on lists of tensors, which optimizers with ``foreach`` or ``fused`` and gradient scalers call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gossamer.core.decide import Decision
from gossamer.core.facts import KEEPS_ZEROS
from gossamer.core.join import gather
from gossamer.core.table import Operator
from gossamer.core.tensor import SparseTensor
from gossamer.core.values import entries
from gossamer.formats.values import mask_padding


def decide(operator: Operator, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Decision:
    """Decide a list operator: in place at once on the values, otherwise one tensor at a time."""
    name = operator.name
    if operator.inplace:
        words = "all lists are read, and written, at the stored positions of the first"
        return Decision(name, _on_values, "native", args, kwargs, words=words, call=partial(_on_values, operator, func))
    words = "one tensor of the lists at a time: each has its own decision"
    single = name.removeprefix("_foreach_")
    return Decision(name, _one_by_one, "native", args, kwargs, words=words, call=partial(_one_by_one, single))


def _one_by_one(name: str, *args: Any, **kwargs: Any) -> Any:
    if name in ("addcmul", "addcdiv") and len(args) == 4:  # their scalar has no name in a list operator
        *args_, value = args
        args, kwargs = tuple(args_), {**kwargs, "value": value}
    single = getattr(torch.Tensor, name, None) or getattr(torch, name)
    every = range(len(args[0]))
    return [single(*(_item(a, i) for a in args), **{k: _item(v, i) for k, v in kwargs.items()}) for i in every]


def _item(value: Any, i: int) -> Any:
    return value[i] if isinstance(value, (list, tuple)) else value


def _on_values(operator: Operator, func: Any, *args: Any, **kwargs: Any) -> Any:
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
        others = (*args[1:], *kwargs.values())
        for i, owner in enumerate(owners):
            if isinstance(owner, SparseTensor) and not _keeps_zeros(operator.name, others, i, owner):
                mask_padding(owner._values, owner.structure, inplace=True)
        if not operator.name.startswith("_foreach_"):  # a fused optimizer writes its state, in whatever format it is
            for target, values, owner in copies:
                _write(target, values, owner)
    return owners if isinstance(out, list) else out


def _write(target: Tensor, values: Tensor, owner: SparseTensor) -> None:
    """Write values at the owner's positions; what a dense target has elsewhere stays."""
    if isinstance(target, SparseTensor):
        target.copy_(SparseTensor(values, owner.structure))
        return
    keys, where = entries(owner.structure)
    flat = values.reshape(-1)
    target.put_(keys, flat if where is None else flat[where])


def _keeps_zeros(name: str, others: tuple[Any, ...], i: int, owner: SparseTensor) -> bool:
    if not name.startswith("_foreach_"):  # a fused optimizer does several things at once
        return False
    operands = [_item(o, i) for o in others]
    whole = all(v.shape == owner._dense_shape for v in operands if isinstance(v, Tensor))  # read at its positions
    return whole and keeps_zeros(name.removeprefix("_foreach_"), operands)


def keeps_zeros(name: str, operands: Sequence[Any]) -> bool:
    """Does an operator leave the padding of its target 0, if that of its operands is?

    Tensors are read at the target's positions, with zeros in the padding; so sums and products keep it at 0, with every
    finite number. (What an optimizer does at each step, and most of it: a mask written again each time would cost more
    than the step itself.)
    """
    numbers = [v for v in operands if not isinstance(v, Tensor)]
    if any(isinstance(v, Tensor) and v.dim() == 0 for v in operands) or not all(map(_finite, numbers)):
        return False
    if name in ("add", "sub"):  # of a number: only their alpha is one
        return isinstance(operands[0], Tensor)
    if name == "div":
        return not isinstance(operands[0], Tensor) and operands[0] != 0
    return name in KEEPS_ZEROS


def _finite(number: Any) -> bool:
    return isinstance(number, (int, float)) and math.isfinite(number)
