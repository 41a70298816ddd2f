"""Which weights of a model are made sparse, and which stay dense and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gossamer.methods.layers import Layer, is_conv1d, is_embedding, layers_of
from gossamer.models.experts import is_experts
from gossamer.models.modules import dense_class
from gossamer.models.names import LAYERS, Where, by_layer, chosen
from gossamer.models.weights import Weight, all_weights

VECTOR = "vectors"
EMBEDDING = "embeddings"
TIED = "output layers tied to an embedding"
DEPTHWISE = "depthwise convolutions"
FROZEN = "frozen"
OTHER = "not asked for"
_ON_REQUEST = (EMBEDDING, TIED, DEPTHWISE)  # made sparse where they are named


@dataclass(frozen=True)
class Left:
    """A parameter that stays dense, and why."""

    name: str
    size: int
    reason: str


@dataclass(frozen=True)
class Survey:
    """The layers that are made sparse, and the parameters that stay dense.

    Examples
    --------
    >>> import torch
    >>> print(survey(torch.nn.Sequential(torch.nn.Embedding(10, 8), torch.nn.Linear(8, 8))))
    1 sparse weight, 42.1 % of all parameters; dense: 52.6 % embeddings, 5.3 % vectors
    """

    layers: tuple[Layer, ...]
    left: tuple[Left, ...]

    def __str__(self) -> str:
        sizes = {layer.parameter_name: layer.source.shape.numel() for layer in self.layers}
        return taken_and_left(len(sizes), sum(sizes.values()), self.left)


def taken_and_left(count: int, size: int, left: Sequence[Left]) -> str:
    """One line: how much is sparse, and why the rest is dense.

    Examples
    --------
    >>> taken_and_left(2, 90, [Left("bias", 10, "vectors")])
    '2 sparse weights, 90.0 % of all parameters; dense: 10.0 % vectors'
    """
    total = max(size + sum(one.size for one in left), 1)
    reasons: dict[str, int] = {}
    for one in left:
        reasons[one.reason] = reasons.get(one.reason, 0) + one.size
    ordered = sorted(reasons.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{100 * size / total:.1f} % {why}" for why, size in ordered)
    taken = f"{count} sparse weight{'s' * (count != 1)}, {100 * size / total:.1f} % of all parameters"
    return f"{taken}; dense: {parts}" if parts else taken


def survey(model: nn.Module, where: Where = None, *, trained: bool = False) -> Survey:
    """Find the layers of a model that can be made sparse, each weight once.

    Parameters
    ----------
    model
        Any module.
    where
        Which names: a glob, several globs, or a predicate of the name. Embeddings, output layers tied to one and
        depthwise convolutions are included only by a glob that matches nothing else.
    trained
        Skip weights that don't require a gradient.
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
    """The weights that a glob matches: usual ones, else those that stay dense unless they are named."""
    try:
        return by_layer(glob, usual)
    except ValueError:
        try:
            return by_layer(glob, special)
        except ValueError:
            pass
        raise


def reason_to_leave(weight: Weight, trained: bool) -> str | None:
    """Why a weight stays dense; None if it is made sparse."""
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
            return f"parameters of {dense_class(module).__name__}, which is not supported"
        if 1 < getattr(module, "groups", 1) == getattr(module, "in_channels", 0):
            return DEPTHWISE
    return FROZEN if trained and not weight.parameter.requires_grad else None
