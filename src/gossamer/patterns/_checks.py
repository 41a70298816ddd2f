"""Checks of what people pass to patterns, and exact arithmetic on fractions."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Real


def as_fraction(name: str, value: object) -> float:
    """`value` as a float in [0, 1], or an error."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number from 0 to 1, got {value!r} of type {type(value).__name__}.")
    number = float(value)
    if not 0 <= number <= 1:  # also catches NaN
        hint = f" Did you mean {number / 100:g}?" if 1 < number <= 100 else ""
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
    """Refuse more values than there are."""
    if n > m:
        raise ValueError(f"{who} keeps n of each m values, so n <= m; got n={n}, m={m}. Did you mean {m}:{n}?")


def dropped(sparsity: float, n: int) -> int:
    """round(sparsity * n), half to even, without rounding errors.

    0.35 means 35/100 here and not the binary number next to it, so that 35 % of 10 is 3.5 and rounds to 4 on every
    machine.
    """
    return round(Fraction(repr(sparsity)) * n)


def percent(sparsity: float) -> str:
    """0.9 -> "90%", exactly: reading it back gives the same float."""
    return f"{(Decimal(repr(sparsity)) * 100).normalize():f}%"


def from_percent(text: str) -> float:
    """ "90" -> 0.9."""
    return float(Decimal(text) / 100)
