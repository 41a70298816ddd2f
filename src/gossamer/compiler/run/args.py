"""Arg: an operand as a plan knows it, without its values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.formats import Structure


class Arg(NamedTuple):
    """An operand without its values: a structure, or the shape and strides of an ordinary tensor."""

    vars: tuple[str, ...]
    structure: Structure | None
    shape: tuple[int, ...]
    stride: tuple[int, ...] = ()

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of an ordinary operand; those of one that is stored as a dense tensor are contiguous."""
        return self.stride or strides_in(self.shape, range(len(self.shape)))


def strides_in(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return strides of each dimension of a tensor that is stored with its dimensions in this order.

    Examples
    --------
    >>> strides_in((2, 3), (0, 1)), strides_in((2, 3), (1, 0))
    ((3, 1), (1, 2))
    """
    strides, stride = [0] * len(shape), 1
    for d in reversed(order):
        strides[d] = stride
        stride *= max(shape[d], 1)
    return tuple(strides)
