"""Arrays from files and users are checked against every rule of a format before a kernel reads them.

Each level checks its own rules (:meth:`Level.check`). This module checks what no level can see alone: the shape, the
type of the tensors, the number of values, the order of the entries, zeros in the padding. A broken rule is a
ValueError, an argument of the wrong type a TypeError; the message names the format and the rule.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gossamer.formats import levels
from gossamer.formats.base import Format, check_size

if TYPE_CHECKING:
    from gossamer.formats.structure import Structure

_INT32, _INT64 = 2**31 - 1, 2**63 - 1


_NOT_COMPUTED = (torch.uint16, torch.uint32, torch.uint64)


def outside(
    format: Format, shape: Sequence[int], values: Tensor, arrays: Mapping[str, Tensor]
) -> tuple[torch.Size, Tensor, dict[str, Tensor]]:
    """Return shape, values and arrays if they have the right types; their contents are not checked yet.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> outside(gs.COO(), (2.5,), torch.ones(1), {})
    Traceback (most recent call last):
        ...
    TypeError: COO(): the shape must be a sequence of integers, not (2.5,)
    """
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise TypeError(f"{format}: the shape must be a sequence of integers, not {_short(shape)}") from None
    if any(not -_INT64 <= size <= _INT64 for size in sizes):
        raise ValueError(f"{format}: the shape has a size that doesn't fit into 64 bits")
    _sizes(format, sizes)
    if not isinstance(arrays, Mapping):
        raise TypeError(f"{format}: the arrays must be a mapping from names to tensors, not {_short(arrays)}")
    expected = [f"{name}{i}" for i, level in enumerate(format.stack(len(sizes))) for name in level.arrays]
    if set(arrays) != set(expected):
        raise ValueError(f"{format}: the arrays are {_short(list(arrays))}, must be {expected}")
    _tensor(f"{format}: the tensor of values", values)
    if values.dtype in _NOT_COMPUTED:
        raise TypeError(f"{format}: the values are {values.dtype}, with which torch can't compute: convert them first")
    for name in expected:
        _tensor(f"{format}: {name}", arrays[name])
        if arrays[name].device != values.device:
            raise ValueError(f"{format}: {name} is on {arrays[name].device}, the values on {values.device}")
    return torch.Size(sizes), values.contiguous(), {name: arrays[name].contiguous() for name in expected}


def _sizes(format: Format, shape: tuple[int, ...]) -> None:
    try:
        check_size(shape, "the shape")
        check_size(format.level_sizes(shape), "the level sizes")
    except ValueError as error:
        raise ValueError(f"{format}: {error}") from None


def _tensor(what: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} must be a torch.Tensor, not {_short(tensor)}")
    plain = type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided
    if not plain or tensor.is_quantized or tensor.is_nested:
        raise TypeError(f"{what} must be a plain dense torch.Tensor, not a {type(tensor).__name__} ({tensor.layout})")
    if tensor.device.type == "meta":
        raise ValueError(f"{what} is on the meta device, where there is no data to check")
    # an expanded array of a few bytes can have any length, so lengths would not limit the work of checking
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ValueError(f"{what} is expanded, must have memory of its own: call .contiguous()")


def check(structure: Structure, values: Tensor) -> None:
    """Raise ValueError, naming the broken rule, unless arrays and values are valid."""
    format, shape = structure.format, structure.shape
    who = f"{format} of shape {tuple(shape)}"
    _sizes(format, tuple(shape))
    _one_index_type(who, structure.arrays)
    positions, axes = 1, ()  # type: int, tuple[int, ...]
    for i, (level, size) in enumerate(zip(format.stack(len(shape)), format.level_sizes(shape), strict=True)):
        own = {name: structure.arrays[f"{name}{i}"] for name in level.arrays}
        if level.full:
            axes = (*axes, size)
            own = {name: array.reshape(-1) if array.shape == axes else array for name, array in own.items()}
        try:
            levels.check(level, own, positions, size)
            positions = level.positions(own, positions, size)
            check_size((positions,), "the number of positions")
        except ValueError as error:
            raise ValueError(f"{who}, level {i}: {error}") from None
        axes = axes if level.full else (positions,)
    if tuple(values.shape) != axes:
        raise ValueError(f"{who}: the values are {tuple(values.shape)}, must be {axes}")
    _wide_enough(who, structure.arrays, max(positions, *format.level_sizes(shape)))
    _check_entries(who, structure, values)


def _one_index_type(who: str, arrays: Mapping[str, Tensor]) -> None:
    """Kernels read all index arrays of a tensor with one type."""
    types = {name: array.dtype for name, array in arrays.items() if array.dtype not in (torch.bool, torch.uint8)}
    if len(set(types.values())) > 1:
        given = ", ".join(f"{name} {dtype}" for name, dtype in types.items())
        raise ValueError(f"{who}: index arrays must all be int32 or all int64, not {given}")


def _wide_enough(who: str, arrays: Mapping[str, Tensor], most: int) -> None:
    for name, array in arrays.items():
        if array.dtype == torch.int32 and most > _INT32:
            raise ValueError(f"{who}: {name} is int32, must be int64 for sizes and positions up to {most}")


def _check_entries(who: str, structure: Structure, values: Tensor) -> None:
    """No entry twice, all in order, zeros in the padding."""
    if structure.plain:  # every position has a place: only values at positions that are not stored can be wrong
        valid = structure.valid()
        if valid is not None and bool((values.masked_fill(valid, 0) != 0).any()):
            raise ValueError(f"{who}: a value outside the pattern is not zero")
        return
    coords, valid = structure.positions()
    format, shape = structure.format, structure.shape
    if format.own_map:  # two positions of the levels must not be the same position of the tensor
        coords = format.to_levels(format.from_levels(coords, shape), shape)
    number = coords[0]
    for coord, size in zip(coords[1:], format.level_sizes(shape)[1:], strict=True):
        number = number * size + coord
    number = number if valid is None else number[valid]
    if not (_ascending(number) if format.ordered else _distinct(number, math.prod(format.level_sizes(shape)))):
        raise ValueError(f"{who}: entries are not in ascending order, or one occurs twice")
    if valid is not None and bool((values.reshape(-1)[~valid] != 0).any()):
        raise ValueError(f"{who}: a value outside the pattern is not zero")


def _ascending(number: Tensor) -> bool:
    return number.numel() < 2 or bool((number[1:] > number[:-1]).all())


def _distinct(number: Tensor, places: int) -> bool:
    """Is each number, of 0 .. places - 1, there only once? (Marking places is five times faster than sorting.)"""
    if places > 32 * number.numel():
        return _ascending(number.sort().values)
    seen = torch.zeros(places, dtype=torch.bool, device=number.device)
    seen[number] = True
    return int(seen.sum()) == number.numel()


def _short(value: object) -> str:
    if not isinstance(value, (tuple, list, str, int, float, type(None))):
        return f"a {type(value).__name__}"
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]} ..."
