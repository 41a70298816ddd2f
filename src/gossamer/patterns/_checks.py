"""Checks of the arguments of patterns, tensors as matrices, and exact arithmetic on fractions."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import prod
from numbers import Integral, Real

import torch
from torch import Tensor


def as_fraction(name: str, value: object) -> float:
    """`value` as a float in [0, 1], or an error."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number from 0 to 1, got {value!r} of type {type(value).__name__}.")
    number = float(value)
    if not 0 <= number <= 1:  # also catches NaN
        hint = f" Did you mean {number / 100:g}?" if 2 <= number <= 100 else ""  # 1.5 is no percentage
        raise ValueError(f"{name} must be from 0 (keep all) to 1 (drop all), got {value!r}.{hint}")
    return number


def as_count(name: str, value: object, at_least: int = 1) -> int:
    """`value` as an int >= at_least, or an error."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer >= {at_least}, got {value!r} of type {type(value).__name__}.")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}.")
    return int(value)


def check_n_of_m(who: str, n: int, m: int) -> None:
    """Raise if n is larger than m."""
    if n > m:
        raise ValueError(f"{who} keeps n of every m values, so n <= m; got n={n}, m={m}. Did you mean {m}:{n}?")


def dropped(sparsity: float, n: int) -> int:
    """round(sparsity * n), half to even, without rounding errors.

    0.35 means 35/100 here, not the nearest binary number, so 35 % of 10 is 3.5 and rounds to 4 on every machine.
    """
    return round(Fraction(repr(sparsity)) * n)


def shortest(gone: int, of: int) -> float:
    """The fraction with the fewest decimals that drops exactly `gone` of `of` values.

    Examples
    --------
    >>> shortest(7373, 8192), shortest(1, 3)
    (0.9, 0.3)
    """
    for digits in range(1, 17):
        fraction = round(gone / of, digits)
        if dropped(fraction, of) == gone:
            return fraction
    return gone / of


def check_scores(scores: Tensor, name: str) -> Tensor:
    """The scores as float32 or float64, detached; or an error that explains why `name` can't rank them."""
    if not isinstance(scores, Tensor):
        raise TypeError(
            f"{name} needs a tensor of scores, got {type(scores).__name__}. Use torch.as_tensor(...) first."
        )
    if not scores.dtype.is_floating_point:
        raise TypeError(
            f"{name} needs real floating-point scores, got {scores.dtype}. "
            "Score the tensor first, for example with gossamer.Magnitude(), or convert it with .float()."
        )
    if scores.is_meta:
        raise ValueError(f"{name} can't rank what is on the meta device, where there are no values: load them first")
    scores = scores.detach()
    if scores.dtype not in (torch.float32, torch.float64):
        scores = scores.float()
    if not torch.compiler.is_exporting() and bool(scores.isnan().any()):  # a graph has no place for a question
        bad = int(scores.isnan().sum())
        raise ValueError(
            f"{name} can't rank NaN: {bad} of {scores.numel()} scores of shape {tuple(scores.shape)} are NaN. "
            "Look for an overflow in the weights or gradients, or replace them with torch.nan_to_num."
        )
    return scores


def matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor of this shape, read as a matrix."""
    if len(shape) < 2:
        return 1, prod(shape)
    return shape[0], prod(shape[1:])


def as_matrix(scores: Tensor) -> Tensor:
    """The scores as rows x columns (a view where strides allow)."""
    return scores.reshape(matrix_shape(scores.shape))
