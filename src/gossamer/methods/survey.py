"""Which weights of a model are taken, and which are left and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gossamer.methods.layers import Layer, is_conv1d, is_experts, layers_of
from gossamer.models.names import LAYERS, Where, by_layer, chosen

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
        sizes = {layer.parameter_name: layer.parameter.numel() for layer in self.layers}
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
    owners: dict[int, list[tuple[str, nn.Module]]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((f"{path}.{name}".lstrip("."), module))
    parameters = {owners[id(p)][0][0]: p for p in model.parameters()}
    reasons = {n: reason_to_leave(p, owners[id(p)], trained) for n, p in parameters.items()}
    usual = [n for n, why in reasons.items() if why is None]
    special = [n for n, why in reasons.items() if why in _ON_REQUEST]
    if where is None or callable(where):
        picked = set(chosen(usual, where))
    else:
        picked = {n for glob in ([where] if isinstance(where, str) else where) for n in named(glob, usual, special)}
    layers: list[Layer] = []
    for name, parameter in parameters.items():
        if name in picked:
            layers += layers_of(name, _layer_among(owners[id(parameter)]), parameter)
    left = [Left(n, p.numel(), reasons[n] or OTHER) for n, p in parameters.items() if n not in picked]
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


def _layer_among(owners: Sequence[tuple[str, nn.Module]]) -> nn.Module:
    """The owner that multiplies with a weight: the linear layer, where it is tied to an embedding."""
    return next((m for _, m in owners if not _embeds(m)), owners[0][1])


def reason_to_leave(parameter: nn.Parameter, owners: Sequence[tuple[str, nn.Module]], trained: bool) -> str | None:
    """Why a parameter is left; None if it is taken."""
    if parameter.dim() < 2:
        return VECTOR
    if any(_embeds(module) for _, module in owners):
        return EMBEDDING if len(owners) == 1 else TIED
    for name, module in owners:
        if ".parametrizations." in f".{name}" or name.endswith(("weight_g", "weight_v")):
            return "computed by a parametrization such as weight_norm: remove it first"
        if name.endswith("weight_orig"):
            return "masked by torch.nn.utils: call remove first"
        linear = (isinstance(module, LAYERS) or is_conv1d(module)) and name.endswith("weight")
        attention = isinstance(module, nn.MultiheadAttention) and name.endswith("proj_weight")
        if not (linear or attention or is_experts(module, parameter)):
            return f"of a {type(module).__name__}, which isn't known"
        if 1 < getattr(module, "groups", 1) == getattr(module, "in_channels", 0):
            return DEPTHWISE
    return FROZEN if trained and not parameter.requires_grad else None


def _embeds(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding | nn.EmbeddingBag)
