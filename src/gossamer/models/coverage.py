"""How much of a model is sparse, and why the rest of it is dense: what sparsify_, pack_, training and pruning say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from gossamer.models.experts import is_experts
from gossamer.models.modules import dense_class
from gossamer.models.names import LAYERS, inputs_first
from gossamer.models.weights import Weight

VECTOR = "vectors"
EMBEDDING = "embeddings"
TIED = "output layers tied to an embedding"
DEPTHWISE = "depthwise convolutions"
PARAMETRIZED = "computed by a parametrization such as weight_norm: remove it first"
MASKED = "masked by torch.nn.utils: call remove first"
#: Reasons that don't count where such a weight is named.
ON_REQUEST = (EMBEDDING, TIED, DEPTHWISE)


@dataclass(frozen=True)
class Left:
    """A parameter that stays dense, and why."""

    name: str
    size: int
    reason: str


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


def reason_to_stay_dense(weight: Weight) -> str | None:
    """Why a weight stays dense unless it is named; None if it can be made sparse.

    Examples
    --------
    >>> import torch
    >>> from gossamer.models.weights import all_weights
    >>> [reason_to_stay_dense(weight) for weight in all_weights(torch.nn.Linear(4, 4)).values()]
    [None, 'vectors']
    """
    if len(weight.shape) < 2:
        return VECTOR
    if any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module, _ in weight.places):
        return EMBEDDING if len(weight.places) == 1 else TIED
    for (module, own), name in zip(weight.places, weight.names, strict=True):
        if ".parametrizations." in f".{name}" or own in ("weight_g", "weight_v"):
            return PARAMETRIZED
        if own == "weight_orig":
            return MASKED
        linear = (isinstance(module, LAYERS) or inputs_first(module)) and own == "weight"
        attention = isinstance(module, nn.MultiheadAttention) and own.endswith("proj_weight")
        if not (linear or attention or is_experts(module, weight.shape)):
            return f"parameters of {dense_class(module).__name__}, which is not supported"
        if is_depthwise(module):
            return DEPTHWISE
    return None


def is_depthwise(module: nn.Module) -> bool:
    """Has each group of a convolution one channel?

    Examples
    --------
    >>> import torch
    >>> is_depthwise(torch.nn.Conv2d(8, 8, 3, groups=8)), is_depthwise(torch.nn.Conv2d(8, 8, 3, groups=2))
    (True, False)
    """
    return 1 < getattr(module, "groups", 1) == getattr(module, "in_channels", 0)
