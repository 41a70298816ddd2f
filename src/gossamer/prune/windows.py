"""The inputs of a convolution as a matrix: what each output is a weighted sum of, in the order of its weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

_VALUES = 1 << 26  # of unfolded inputs at a time: 256 MB


class Geometry(NamedTuple):
    """How a convolution moves over its input, a value for each dimension of the window."""

    window: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] | None = None
    """Of a transposed convolution; None: it isn't transposed."""


def geometry(given: dict[str, Any], transposed: bool) -> Geometry:
    """The geometry of a call of a convolution, from its arguments by name."""
    window = tuple(given["weight"].shape[2:])

    def each(name: str, default: int) -> Any:
        value = given.get(name, default)
        if isinstance(value, str):
            return value
        return (value,) * len(window) if isinstance(value, int) else tuple(value) * (len(window) // len(value))

    output = each("output_padding", 0) if transposed else None
    return Geometry(window, each("stride", 1), each("padding", 0), each("dilation", 1), given.get("groups", 1), output)


def columns(x: Tensor, how: Geometry | None = None) -> Iterator[Tensor]:
    """Activations as [groups, tokens, columns], some samples at a time.

    Examples
    --------
    >>> import torch
    >>> next(columns(torch.arange(4.0).view(1, 1, 4), Geometry((2,), (1,), (0,), (1,), 1)))
    tensor([[[0., 1.],
             [1., 2.],
             [2., 3.]]])
    """
    if how is None:
        yield x.reshape(1, -1, x.shape[-1])
        return
    if x.dim() == len(how.window) + 1:
        x = x[None]
    spread = torch.Size(how.stride).numel() if how.output_padding is not None else 1
    each = max(x[0].numel() * spread * torch.Size(how.window).numel(), 1)
    for part in x.split(max(1, _VALUES // each)):
        yield _unfolded(part, how)


def _unfolded(x: Tensor, how: Geometry) -> Tensor:
    transposed = how.output_padding is not None
    x = _spread(x, how) if transposed else _padded(x, how)
    steps = (1,) * len(how.window) if transposed else how.stride
    for d, (size, step, gap) in enumerate(zip(how.window, steps, how.dilation, strict=True)):
        x = x.unfold(d + 2, (size - 1) * gap + 1, step)[..., ::gap]
    if transposed:  # which adds its window to the output from the other end
        x = x.flip(tuple(range(-len(how.window), 0)))
    batch, channels = x.shape[:2]
    places = x.shape[2 : 2 + len(how.window)]
    x = x.reshape(batch, how.groups, channels // how.groups, places.numel(), -1)
    return x.permute(1, 0, 3, 2, 4).reshape(how.groups, batch * places.numel(), -1)


def _padded(x: Tensor, how: Geometry) -> Tensor:
    if how.padding == "valid":
        return x
    sides: list[int] = []
    for d in reversed(range(len(how.window))):
        if how.padding == "same":
            total = how.dilation[d] * (how.window[d] - 1)
            sides += [total // 2, total - total // 2]
        else:
            sides += [how.padding[d], how.padding[d]]  # type: ignore[list-item]
    return F.pad(x, sides)


def _spread(x: Tensor, how: Geometry) -> Tensor:
    """The input of the convolution that a transposed one is: zeros in between, and as much padding as it needs."""
    assert how.output_padding is not None and not isinstance(how.padding, str)
    sizes = [(n - 1) * step + 1 for n, step in zip(x.shape[2:], how.stride, strict=True)]
    wide = x.new_zeros(*x.shape[:2], *sizes)
    wide[(slice(None), slice(None), *(slice(None, None, step) for step in how.stride))] = x
    sides: list[int] = []
    for d in reversed(range(len(how.window))):
        reach = how.dilation[d] * (how.window[d] - 1) - how.padding[d]
        sides += [reach, reach + how.output_padding[d]]
    return F.pad(wide, sides)
