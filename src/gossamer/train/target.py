"""The target of a method: a sparsity or a pattern, and what it means for each layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from gossamer.patterns import Pattern, Unstructured, as_pattern
from gossamer.train.layers import Layer

_COMMON_MULTIPLE = 5040  # of every usual n:m group: a matrix of this many columns has the nominal sparsity


class Target(NamedTuple):
    """A sparsity, a pattern, or both: a pattern that can have any sparsity (blocks, fan-in) gets the one of the target.

    The sparsity is None if the pattern fixes it (n:m); the pattern is None if any positions may be kept.
    """

    sparsity: float | None
    pattern: Pattern | None


def as_target(method: str, sparsity: float | str | Pattern | None, pattern: Pattern | str | None) -> Target:
    """The target from the user's arguments: ``0.9``, ``"2:4"``, ``pattern=gs.Blocks(0.9)``.

    Examples
    --------
    >>> as_target("RigL", 0.9, None), as_target("RigL", "80%", None)
    (Target(sparsity=0.9, pattern=None), Target(sparsity=0.8, pattern=None))
    >>> as_target("RigL", None, "2:4")
    Target(sparsity=None, pattern=NM(n=2, m=4))
    """
    if isinstance(sparsity, str | Pattern):
        if pattern is not None:
            raise ValueError(f"{method}: give one pattern, not {sparsity} and {pattern}")
        sparsity, pattern = None, sparsity
    if pattern is None:
        return Target(0.9 if sparsity is None else sparsity, None)
    pattern = as_pattern(pattern)
    own = own_sparsity(pattern)
    _check(method, sparsity, pattern, own)
    plain = isinstance(pattern, Unstructured) and pattern.per == "tensor"
    return Target(own, None if plain else pattern)


def _check(method: str, sparsity: float | None, pattern: Pattern, own: float | None) -> None:
    if pattern.joint:
        raise ValueError(f"{method}: layers are updated one by one, so {pattern} can't rank them together: choose how "
                         "they share the weights by distribution=...")  # fmt: skip
    if not pattern.ranks:
        raise ValueError(f"{method}: {pattern} keeps a number of weights that isn't known in advance; use STE for it")
    side = (_COMMON_MULTIPLE, _COMMON_MULTIPLE)
    nominal = pattern.sparsity_of(side) if own is None else own
    if sparsity is not None and nominal is not None and abs(sparsity - nominal) > 0.005:
        raise ValueError(f"{method}: sparsity={sparsity} and {pattern}, which has {nominal:.4g}, disagree: give one")


def own_sparsity(pattern: Pattern) -> float | None:
    """The sparsity of a pattern; None if the pattern fixes it.

    Examples
    --------
    >>> import gossamer as gs
    >>> own_sparsity(gs.Blocks(0.8)), own_sparsity(gs.NM(2, 4)), own_sparsity(gs.FanIn(k=4))
    (0.8, None, None)
    """
    found: float | None = getattr(pattern, "sparsity", None)
    return found


def fitted(pattern: Pattern, layer: Layer, budget: int) -> Pattern:
    """The pattern for a layer with a budget: the same, with another sparsity if possible. It always keeps something.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> layer = Layer("w", gs.nn.all_weights(torch.nn.Linear(8, 4))["weight"], (4, 8))
    >>> fitted(gs.FanIn(0.9), layer, 12), fitted(gs.FanIn(0.9), layer, 1), fitted(gs.NM(2, 4), layer, 12)
    (FanIn(sparsity=0.625, k=None), FanIn(sparsity=0.875, k=None), NM(n=2, m=4))
    """
    if own_sparsity(pattern) is None:
        return pattern
    anything: Any = pattern
    keep = budget
    while True:
        found: Pattern = replace(anything, sparsity=(layer.size - keep) / layer.size)
        if keep >= layer.size or kept_by(found, layer) > 0:
            return found
        keep = min(2 * max(keep, 1), layer.size)


def kept_by(pattern: Pattern, layer: Layer) -> int:
    """How many weights of a layer a pattern keeps.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> kept_by(gs.NM(2, 4), Layer("w", gs.nn.all_weights(torch.nn.Linear(8, 4))["weight"], (4, 8)))
    16
    """
    share = pattern.sparsity_of((layer.outputs, layer.inputs))
    if share is None:
        return int(pattern.select(torch.zeros(layer.outputs, layer.inputs)).sum())
    return layer.size - round(share * layer.size)


def share_out(
    layers: Sequence[Layer], pattern: Pattern | None, sparsity: float | None, budgets: Callable[[float], list[int]]
) -> float:
    """Give each layer its place, its budget and its pattern; the sparsity of all.

    Parameters
    ----------
    layers
        That share the weights.
    pattern, sparsity
        The target. A layer of a pattern that fixes its sparsity keeps as many weights as the pattern does.
    budgets
        How many weights each layer keeps at a sparsity of all.
    """
    place = 0
    for layer, budget in zip(layers, [0] * len(layers) if sparsity is None else budgets(sparsity), strict=True):
        layer.budget, layer.offset, place = budget, place, place + layer.size
        if pattern is not None:
            layer.pattern = fitted(pattern, layer, budget)
            layer.budget = kept_by(layer.pattern, layer)
    return 1 - sum(layer.budget for layer in layers) / max(place, 1) if sparsity is None else sparsity
