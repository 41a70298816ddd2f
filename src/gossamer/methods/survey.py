"""Which weights of a model are taken, and which are left and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gossamer.methods.layers import Layer, is_conv1d, is_embedding, is_experts, layers_of
from gossamer.models.modules import dense_class
from gossamer.models.names import LAYERS, Where, by_layer, chosen
from gossamer.models.weights import Weight, all_weights

VECTOR = "vectors"
EMBEDDING = "embeddings"
TIED = "output layers tied to an embedding"
DEPTHWISE = "depthwise convolutions"
FROZEN = "frozen"
OTHER = "not asked for"
_ON_REQUEST = (EMBEDDING, TIED, DEPTHWISE)  # taken where they are named


@dataclass(frozen=True)
class Left:
    """A parameter that is not taken, and why."""

    name: str
    size: int
    reason: str


@dataclass(frozen=True)
class Survey:
    """The layers that are taken, and the parameters that are left.

    Examples
    --------
    >>> import torch
    >>> print(survey(torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8))))
    taken 1 weight, 42.1 % of all parameters; left: 52.6 % because they are embeddings, 5.3 % because they are vectors
    """

    layers: tuple[Layer, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        sizes = {layer.parameter_name: layer.source.shape.numel() for layer in self.layers}
        return taken_and_left(len(sizes), sum(sizes.values()), self.left)


def taken_and_left(count: int, size: int, left: Sequence[Left]) -> str:
    """One line: what was taken, and what was left because of what.

    Examples
    --------
    >>> taken_and_left(2, 90, [Left("bias", 10, "vectors")])
    'taken 2 weights, 90.0 % of all parameters; left: 10.0 % because they are vectors'
    """
    total = max(size + sum(one.size for one in left), 1)
    reasons: dict[str, int] = {}
    for one in left:
        reasons[one.reason] = reasons.get(one.reason, 0) + one.size
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{100 * size / total:.1f} % because they are {why}" for why, size in ordered)
    taken = f"taken {count} weight{'s' * (count != 1)}, {100 * size / total:.1f} % of all parameters"
    return f"{taken}; left: {parts}" if parts else taken


def survey(model: nn.Module, where: Where = None, *, trained: bool = False) -> Survey:
    """Find the layers of a model that can be made sparse, each weight once.

    Parameters
    ----------
    model
        Any module.
    where
        Names to take: a glob, several, or a predicate of the name. Embeddings, output layers tied to one and depthwise
        convolutions are taken only by a glob that names nothing else.
    trained
        Leave weights that don't require a gradient.
    """
    weights = all_weights(model)
    reasons = {name: reason_to_leave(weight, trained) for name, weight in weights.items()}
    usual = [n for n, why in reasons.items() if why is None]
    special = [n for n, why in reasons.items() if why in _ON_REQUEST]
    if where is None or callable(where):
        picked = set(chosen(usual, where))
    else:
        picked = {n for glob in ([where] if isinstance(where, str) else where) for n in named(glob, usual, special)}
    layers = [layer for name, weight in weights.items() if name in picked for layer in layers_of(weight)]
    left = [Left(n, w.shape.numel(), reasons[n] or OTHER) for n, w in weights.items() if n not in picked]
    return Survey(tuple(layers), tuple(left))


def named(glob: str, usual: Sequence[str], special: Sequence[str]) -> list[str]:
    """The weights that a glob names: usual ones, else those that are left unless they are named."""
    try:
        return by_layer(glob, usual)
    except ValueError:
        try:
            return by_layer(glob, special)
        except ValueError:
            pass
        raise


def reason_to_leave(weight: Weight, trained: bool) -> str | None:
    """Why a weight is left; None if it is taken."""
    if len(weight.shape) < 2:
        return VECTOR
    if any(is_embedding(module) for module, _ in weight.places):
        return EMBEDDING if len(weight.places) == 1 else TIED
    for (module, own), name in zip(weight.places, weight.names, strict=True):
        if ".parametrizations." in f".{name}" or own in ("weight_g", "weight_v"):
            return "computed by a parametrization such as weight_norm: remove it first"
        if own == "weight_orig":
            return "masked by torch.nn.utils: call remove first"
        linear = (isinstance(module, LAYERS) or is_conv1d(module)) and own == "weight"
        attention = isinstance(module, nn.MultiheadAttention) and own.endswith("proj_weight")
        if not (linear or attention or is_experts(module, weight.shape)):
            return f"of a {dense_class(module).__name__}, which isn't known"
        if 1 < getattr(module, "groups", 1) == getattr(module, "in_channels", 0):
            return DEPTHWISE
    return FROZEN if trained and not weight.parameter.requires_grad else None
