"""The plan: which layers get which pattern, by which method. All arguments are checked here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from gossamer.methods import Layer, Left, survey
from gossamer.methods.survey import OTHER
from gossamer.models.names import Where
from gossamer.models.weights import all_weights
from gossamer.patterns import Pattern, as_pattern
from gossamer.prune.known import as_method
from gossamer.prune.methods import ByScore, Method
from gossamer.scores import Score
from gossamer.sparsifiers import Sparsifier

How = Pattern | Sparsifier | str | None
By = str | Method | Score | Sparsifier | None


@dataclass(frozen=True)
class Plan:
    """Layers with their patterns, what stays dense and why, and the method."""

    patterns: dict[Layer, Pattern]
    left: tuple[Left, ...]
    method: Method

    @property
    def joint(self) -> list[Layer]:
        """Layers that are ranked together."""
        return [layer for layer, pattern in self.patterns.items() if pattern.joint]


def plan(model: nn.Module, how: How | Mapping[str, How], where: Where, method: By) -> Plan:
    """Check all arguments before the work starts.

    Parameters
    ----------
    model, how, where
        As for ``oneshot``.
    method
        As for ``oneshot``; None: the score of `how` if it is a sparsifier, else "sparsegpt".
    """
    if how is None and isinstance(method, Sparsifier):
        how = method
    if how is None:
        raise ValueError("how=None leaves everything dense; give a pattern such as '50%' or gs.NM(2, 4)")
    rules: list[How] = list(how.values()) if isinstance(how, Mapping) else [how]
    chosen = _method(rules, method)
    if not (every := survey(model)).layers:
        name = type(model).__name__
        raise ValueError(f"{name} has no layer whose weight can be pruned (linear or convolution): {every}")
    taken = _by_glob(model, how, where) if isinstance(how, Mapping) else dict.fromkeys(survey(model, where).layers, how)
    patterns = {layer: _pattern(rule) for layer, rule in taken.items() if rule is not None}
    if not patterns:
        raise ValueError("nothing is left to prune: every layer is excluded by `how` or `where`")
    for layer, pattern in patterns.items():
        pattern.sparsity_of((layer.outputs, layer.inputs))  # raises where it doesn't fit
        if not bool(layer.view(layer.dense()).isfinite().all()):
            raise ValueError(f"{layer.parameter_name!r} contains NaN or infinity: the model is broken before pruning")
    found = Plan(*_sorted(model, patterns), chosen)
    if found.joint and not (isinstance(chosen, ByScore) and "inputs" not in chosen.needs):
        raise ValueError(
            f'"per model" ranks all layers together, but {chosen.name!r} prunes one block after the other: '
            "use '50%' or '50% per row', or method='magnitude'"
        )
    return found


def _sorted(model: nn.Module, patterns: dict[Layer, Pattern]) -> tuple[dict[Layer, Pattern], tuple[Left, ...]]:
    """Layers in the order of the model, and the parameters that are left."""
    weights = all_weights(model)
    order = {name: number for number, name in enumerate(weights)}
    taken = {layer.parameter_name for layer in patterns}
    reasons = {one.name: one.reason for one in survey(model).left}
    left = [Left(n, w.shape.numel(), reasons.get(n, OTHER)) for n, w in weights.items() if n not in taken]
    return dict(sorted(patterns.items(), key=lambda item: order[item[0].parameter_name])), tuple(left)


def _by_glob(model: nn.Module, rules: Mapping[str, How], where: Where) -> dict[Layer, How]:
    """The rule of each layer: that of the first glob that names it."""
    patterns: dict[str, How] = {}
    layers: dict[str, Layer] = {}
    allowed = {layer.name for layer in survey(model, where).layers}
    for glob, rule in rules.items():
        for layer in survey(model, glob).layers:
            if where is None or layer.name in allowed:
                layers.setdefault(layer.name, layer)
                patterns.setdefault(layer.name, rule)
    return {layers[name]: rule for name, rule in patterns.items()}


def _pattern(rule: Pattern | Sparsifier | str) -> Pattern:
    return rule.pattern if isinstance(rule, Sparsifier) else as_pattern(rule)


def _method(rules: list[How], method: By) -> Method:
    """The method that was asked for, or the score of the sparsifiers."""
    scores = {rule.score for rule in rules if isinstance(rule, Sparsifier)}
    if method is None:
        if len(scores) > 1:
            raise ValueError(
                f"only one score per call is possible: how has sparsifiers with {', '.join(sorted(map(repr, scores)))}"
            )
        return as_method(next(iter(scores), "sparsegpt"))
    chosen = as_method(method)
    wanted = {score for score in scores if ByScore(score) != chosen}
    if wanted:
        raise ValueError(
            f"how says {wanted.pop()!r}, but method={method!r} decides how values are scored: give the pattern alone"
        )
    return chosen
