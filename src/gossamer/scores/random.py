"""Uniform random scores that depend only on the seed and the index."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from .base import Score

_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Random(Score):
    """Independent uniform numbers in (0, 1), by hashing the seed and the linear index of each value.

    There is no generator and no state. Scores are the same on every device and for any number of threads, and also if a
    tensor is scored in pieces, with the `offset` of each piece. 0 and 1 themselves don't occur, so `Threshold(p)` drops
    nothing at p = 0 and everything at p = 1.

    Parameters
    ----------
    seed
        Any integer; used modulo 2**64.

    Notes
    -----
    Context: `offset` (optional), the linear index of the tensor's first value in the tensor that it is a piece of.

    Examples
    --------
    >>> import torch
    >>> whole = Random(seed=1)(torch.empty(6))
    >>> piece = Random(seed=1)(torch.empty(2), offset=4)
    >>> bool((whole[4:] == piece).all())
    True
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.seed, bool) or not isinstance(self.seed, Integral):
            raise TypeError(f"seed must be an integer, got {self.seed!r} of type {type(self.seed).__name__}.")
        object.__setattr__(self, "seed", int(self.seed))

    def rate(self, weight: Tensor, *, offset: int = 0, **context: Any) -> Tensor:
        index = torch.arange(offset, offset + weight.numel(), dtype=torch.int64, device=weight.device)
        # 23 bits and a half: odd multiples of 2**-24, exact in float32 and strictly between 0 and 1.
        top = _shift(_splitmix64(index, self.seed & _MASK), 41)
        return ((top.float() + 0.5) * 2.0**-23).view(weight.shape)


def _splitmix64(index: Tensor, seed: int) -> Tensor:
    """Value `index` of the splitmix64 stream that starts at the scrambled seed; int64 wraps around as uint64 would."""
    z = (index + 1) * _signed(0x9E3779B97F4A7C15) + _signed(_scramble(seed))
    z = (z ^ _shift(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _scramble(seed: int) -> int:
    """The same finalizer on a Python int: without it, neighbouring seeds would give shifted copies of one stream."""
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift right; torch's own keeps the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 with the bits of this uint64."""
    return value - (1 << 64) if value >> 63 else value
