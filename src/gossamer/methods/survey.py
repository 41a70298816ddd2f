"""Which weights of a model are made sparse, and which stay dense and why."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from gossamer.methods.layers import Layer, layers_of
from gossamer.models.coverage import ON_REQUEST, Left, reason_to_stay_dense, taken_and_left
from gossamer.models.names import Where, chosen
from gossamer.models.weights import Weight, all_weights

FROZEN = "frozen"
OTHER = "not asked for"


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
    special = [n for n, why in reasons.items() if why in ON_REQUEST]
    picked = set(chosen(usual, where, special))
    layers = [layer for name, weight in weights.items() if name in picked for layer in layers_of(weight)]
    left = [Left(n, w.shape.numel(), reasons[n] or OTHER) for n, w in weights.items() if n not in picked]
    return Survey(tuple(layers), tuple(left))


def reason_to_leave(weight: Weight, trained: bool) -> str | None:
    """Why a weight stays dense; None if it is made sparse."""
    reason = reason_to_stay_dense(weight)
    return FROZEN if reason is None and trained and not weight.parameter.requires_grad else reason
