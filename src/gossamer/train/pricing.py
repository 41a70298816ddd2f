"""Gates whose number is wanted: all are lowered together, so that as many are open, and at the end the best are kept.

A price on the expected number of open gates can't do that: its slope is zero for gates that are nearly always open, so
that whatever the price, some thousand of them remain. All gates are lowered by the same amount instead, which keeps
their order. The amount follows from how many gates are open now; nothing is remembered from step to step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.patterns._rank import keep_top
from gossamer.scores import HardConcrete
from gossamer.train.layers import Layer

_FARTHEST = 1.0  # that gates are lowered in a step
_LOWEST, _HIGHEST = -8.0, 9.0  # log_alpha: beyond, gates are closed or open for good, and don't learn
_CLOSED = -20.0  # log_alpha of a gate that is never open
_MEMORY = 0.95  # of the mean square of gradients


class Push(NamedTuple):
    """What a step does to all gates, as scalar tensors: the host doesn't wait for a GPU.

    ``unit`` divides the gradients of the loss; ``shift`` is subtracted from each ``log_alpha``.
    """

    unit: Tensor
    shift: Tensor

    def __call__(self, alpha: Tensor, gradient: Tensor, lr: float) -> Tensor:
        """Return ``log_alpha`` after a step.

        Examples
        --------
        >>> import torch
        >>> Push(torch.tensor(2.0), torch.tensor(0.25))(torch.tensor([1.0, -8.0]), torch.tensor([4.0, 4.0]), lr=0.1)
        tensor([ 0.5500, -8.0000])
        """
        unit, shift = (each.to(alpha) for each in self)
        return (alpha - shift - lr * gradient / unit).clamp(_LOWEST, _HIGHEST)


def push(layers: Sequence[Layer], gates: HardConcrete, wanted: float) -> Push:
    """Return the step that leads to a number of open gates, by a linear forecast (Newton's step).

    Parameters
    ----------
    layers
        With ``log_alpha`` and ``cost`` (the slope of the expected number of open gates) in ``extra``.
    gates
        How gates are sampled.
    wanted
        How many should be open, as expected from their probabilities.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(8, 4)
    >>> method = gs.train.HardConcrete(model, torch.optim.SGD(model.parameters()), until=9)
    >>> [round(float(push(method.layers, method.gates, wanted).shift), 2) for wanted in (32.0, 30.5, 0.0)]
    [-1.0, 0.78, 1.0]
    """
    device = layers[0].extra["log_alpha"].device
    known = [layer for layer in layers if "square" in layer.extra]
    unit = torch.full((), torch.inf, dtype=torch.float64, device=device)  # no gradient yet
    if known:
        mean = _total([layer.extra["square"] for layer in known], device) / sum(layer.size for layer in known)
        unit = mean.sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    open_now = _total([gates.penalty(layer.extra["log_alpha"]) for layer in layers], device)
    slope = _total([layer.extra["cost"].sum() for layer in layers], device)
    shift = (open_now - wanted) / slope.clamp(min=torch.finfo(torch.float64).tiny)
    return Push(unit, shift.clamp(-_FARTHEST, _FARTHEST))


def _total(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.stack([part.to(device, torch.float64) for part in parts]).sum()


def remember(own: dict[str, Any], slope: Tensor) -> None:
    """Keep the sum of the squares of a layer's gradients, a mean over the last steps.

    Examples
    --------
    >>> import torch
    >>> own = {}
    >>> remember(own, torch.tensor([1.0, 2.0])); remember(own, torch.tensor([0.0, 0.0])); own["square"]
    tensor(4.7500, dtype=torch.float64)
    """
    square = slope.double().square().sum()
    before = own.get("square")
    own["square"] = square if before is None else torch.lerp(square, before.to(square), _MEMORY)


def cut(layers: Sequence[Layer], count: int, gates: HardConcrete) -> None:
    """Keep the ``count`` most open gates of all layers together, and close the others for good.

    A gate that is kept is raised so far that it is open at least half of the time: then its mean is not 0. Of equal
    gates the first are kept.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(4, 1)
    >>> method = gs.train.HardConcrete(model, torch.optim.SGD(model.parameters()), 0.5, until=9)
    >>> method.layers[0].extra["log_alpha"] = torch.tensor([[0.5, -9.0, -8.0, -9.0]])
    >>> cut(method.layers, 2, method.gates)
    >>> method.gates.gate(method.layers[0].extra["log_alpha"]) > 0
    tensor([[ True, False,  True, False]])
    """
    device = layers[0].extra["log_alpha"].device
    sizes = [layer.size for layer in layers]
    order = torch.cat([layer.extra["log_alpha"].reshape(-1).to(device) for layer in layers])
    half = gates.beta * math.log(-gates.gamma / gates.zeta)
    for layer, kept in zip(layers, keep_top(order, count).split(sizes), strict=True):
        alpha = layer.extra["log_alpha"]
        kept = kept.to(alpha.device).view(alpha.shape)
        layer.extra["log_alpha"] = torch.where(kept, alpha.clamp(min=half), _CLOSED)
        layer.budget = int(torch.count_nonzero(kept))
