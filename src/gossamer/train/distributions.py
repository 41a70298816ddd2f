"""How many weights each layer may keep. The budgets add up exactly to the requested sparsity."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

#: shapes of the layers -> how dense they should be, relative to each other
Distribution = Callable[[Sequence[Sequence[int]]], list[float]]

_LOOSE = 8  # inputs a row: below, rounding to whole rows would cost more than an eighth of a budget


def uniform(shapes: Sequence[Sequence[int]]) -> list[float]:
    """The same density everywhere.

    Examples
    --------
    >>> uniform([(100, 10), (10, 10)])
    [1.0, 1.0]
    """
    return [1.0 for _ in shapes]


def er(shapes: Sequence[Sequence[int]]) -> list[float]:
    """Erdos-Renyi: density in proportion to (outputs + inputs) / (outputs x inputs) (Mocanu et al. 2018).

    Examples
    --------
    >>> er([(100, 10), (10, 10)])
    [0.11, 0.2]
    """
    return [(s[0] + s[1]) / max(s[0] * s[1], 1) for s in shapes]


def erk(shapes: Sequence[Sequence[int]]) -> list[float]:
    """Erdos-Renyi with the kernel of convolutions counted in (RigL's; the same as ``er`` for linear layers).

    Examples
    --------
    >>> erk([(8, 4, 3, 3)]) == [(8 + 4 + 3 + 3) / (8 * 4 * 3 * 3)]
    True
    """
    return [sum(s) / max(math.prod(s), 1) for s in shapes]


DISTRIBUTIONS: dict[str, Distribution] = {"uniform": uniform, "er": er, "erk": erk}


def budgets(
    shapes: Sequence[Sequence[int]],
    sparsity: float,
    distribution: str | Distribution | Sequence[float] = "erk",
    *,
    least: Sequence[int] | None = None,
) -> list[int]:
    """How many weights each layer keeps; the sum is exactly ``round((1 - sparsity) x all weights)``.

    Densities are scaled together to reach the sum. A layer that would need more weights than it has is dense, and the
    others share the rest. Fractions of a weight go to the layers with the largest remainders.

    Parameters
    ----------
    shapes
        Of the layers: outputs, inputs, then the kernel of a convolution.
    sparsity
        Of all layers together, from 0 to below 1.
    distribution
        "uniform", "er", "erk", a function of the shapes, or one sparsity per layer.
    least
        The smallest number of weights of a layer; 1 by default.

    Examples
    --------
    >>> budgets([(300, 784), (100, 300), (10, 100)], 0.95, "erk")
    [9051, 3340, 919]
    >>> 9051 + 3340 + 919 == round(0.05 * (300 * 784 + 100 * 300 + 10 * 100))
    True
    """
    if not 0 <= sparsity < 1:  # also catches NaN
        raise ValueError(f"sparsity must be from 0 to below 1, got {sparsity!r}")
    sizes = [math.prod(shape) for shape in shapes]
    least = [min(1, size) for size in sizes] if least is None else list(least)
    if not isinstance(distribution, str) and not callable(distribution):
        if not all(0 <= one < 1 for one in distribution):
            raise ValueError(f"every sparsity must be from 0 to below 1, got {list(distribution)}")
        return [max(kept(s, size), low) for s, size, low in zip(distribution, sizes, least, strict=True)]
    if not callable(distribution) and distribution not in DISTRIBUTIONS:
        names = ", ".join(DISTRIBUTIONS)
        raise ValueError(f"distribution={distribution!r} is not known; choose from {names}, or give {{glob: sparsity}}")
    return _share(shapes, kept(sparsity, sum(sizes)), distribution, least, f"sparsity={sparsity} leaves")


def _share(
    shapes: Sequence[Sequence[int]], total: int, distribution: str | Distribution, least: Sequence[int], leaves: str
) -> list[int]:
    """Budgets that add up to a total; ``leaves`` opens the error where it is too small."""
    sizes = [math.prod(shape) for shape in shapes]
    if not sum(sizes):  # no layers, or empty ones: their densities mean nothing
        return [0 for _ in sizes]
    relative = (distribution if callable(distribution) else DISTRIBUTIONS[distribution])(shapes)
    if not all(0 < one < math.inf for one in relative):
        raise ValueError(f"a distribution gives each layer a density above 0, relative to the others; got {relative}")
    if total < sum(least):
        raise ValueError(
            f"{leaves} {total:,} weights, but {len(sizes)} layers need at least {sum(least):,}: "
            "ask for less sparsity, or leave small layers dense (skip=...)"
        )
    return _whole(_shares(sizes, relative, total, least), total, sizes)


def kept(sparsity: float, size: int) -> int:
    """Number of kept weights of ``size``, rounded.

    Examples
    --------
    >>> kept(0.9, 784 * 300)
    23520
    """
    return round((1 - Fraction(str(sparsity))) * size)


def _shares(sizes: list[int], relative: list[float], total: int, least: Sequence[int]) -> list[float]:
    """Shares in proportion to relative density x size, between ``least`` and all, that add up to the total."""
    low, high = 0.0, max(1 / r for r in relative)
    for _ in range(200):  # the sum grows with the scale: halve the interval until floats can't
        scale = (low + high) / 2
        have = sum(
            min(max(scale * r * size, floor), size) for r, size, floor in zip(relative, sizes, least, strict=True)
        )
        low, high = (scale, high) if have < total else (low, scale)
    return [min(max(high * r * size, floor), size) for r, size, floor in zip(relative, sizes, least, strict=True)]


def _whole(shares: list[float], total: int, sizes: list[int]) -> list[int]:
    """Whole numbers that add up: the largest remainders are rounded up."""
    out = [min(math.floor(share + 1e-6), size) for share, size in zip(shares, sizes, strict=True)]
    order = sorted(range(len(out)), key=lambda i: out[i] - shares[i])
    while sum(out) < total:
        for i in order:
            if sum(out) < total and out[i] < sizes[i]:
                out[i] += 1
    return out


def in_rows(budget: Sequence[int], shapes: Sequence[Sequence[int]], least: Sequence[int]) -> list[int]:
    """Budgets rounded down to multiples of the rows, for a constant fan-in.

    A layer that may lose rows (``least`` below the number of its rows) can use small budgets without rounding.

    Examples
    --------
    >>> in_rows([105, 8], [(10, 50), (20, 50)], [10, 1])
    [100, 13]
    """
    rows, sizes = [shape[0] for shape in shapes], [math.prod(shape) for shape in shapes]
    loose = [low < r and b < _LOOSE * r for b, r, low in zip(budget, rows, least, strict=True)]
    out = [b if free else b - b % r for b, r, free in zip(budget, rows, loose, strict=True)]
    left = sum(budget) - sum(out)
    for i in sorted(range(len(out)), key=lambda i: out[i] - budget[i]):
        more = min(left, sizes[i] - out[i]) if loose[i] else rows[i] if rows[i] <= min(left, sizes[i] - out[i]) else 0
        out[i] += more
        left -= more
    return out


def given(
    how: Mapping[str, float | str], names: Sequence[str], shapes: Sequence[Sequence[int]], sparsity: float,
    least: Sequence[int],
) -> list[int]:  # fmt: skip
    """Budgets from ``{glob of names: sparsity or distribution}``; the first glob that matches a layer decides.

    Layers with a distribution share the remaining weights, so they compensate for layers that are denser. Layers that
    no glob matches get the total sparsity.

    Parameters
    ----------
    how
        Sparsities, such as 0.0 for a dense layer, and at most one distribution, such as ``{"head": 0.0, "*": "erk"}``.
    names, shapes
        Of the layers.
    sparsity
        Of all layers together.
    least
        The smallest number of weights of a layer.

    Examples
    --------
    >>> given({"0.*": 0.5}, ["0.weight", "2.weight"], [(10, 10), (10, 10)], 0.9, [1, 1])
    [50, 10]
    >>> given({"0.*": 0.5, "*": "erk"}, ["0.weight", "2.weight"], [(10, 10), (10, 40)], 0.8, [1, 1])
    [50, 50]
    """
    chosen = _chosen(how, names)
    others = {one for one in chosen.values() if not isinstance(one, float | int)}
    if len(others) > 1:
        raise ValueError(f"distribution has {len(others)} distributions, {sorted(map(str, others))}: give one")
    sizes = [math.prod(shape) for shape in shapes]
    each = [chosen.get(name, sparsity) for name in names]
    out = [max(kept(s, size), low) if isinstance(s, float | int) else 0
           for s, size, low in zip(each, sizes, least, strict=True)]  # fmt: skip
    rest = [i for i, one in enumerate(each) if not isinstance(one, float | int)]
    left, room = kept(sparsity, sum(sizes)) - sum(out), sum(sizes[i] for i in rest)
    if rest and left > room:
        raise ValueError(f"distribution: at sparsity={sparsity} the given layers leave {left:,} weights for layers "
                         f"that have {room:,}: give them less sparsity")  # fmt: skip
    opening = f"distribution: at sparsity={sparsity} the given layers leave"
    for name in others:
        shares = _share([shapes[i] for i in rest], left, name, [least[i] for i in rest], opening)
        for i, share in zip(rest, shares, strict=True):
            out[i] = share
    return out


def _chosen(how: Mapping[str, float | str], names: Sequence[str]) -> dict[str, float | str]:
    """What was given for each layer."""
    from gossamer.models.names import by_layer

    chosen: dict[str, float | str] = {}
    for glob, one in how.items():
        known = one in DISTRIBUTIONS if isinstance(one, str) else 0 <= one < 1
        if not known:
            raise ValueError(f"distribution[{glob!r}]={one!r} must be from 0 to below 1, or "
                             f"one of {', '.join(DISTRIBUTIONS)}")  # fmt: skip
        for name in by_layer(glob, names):
            chosen.setdefault(name, one)
    return chosen
