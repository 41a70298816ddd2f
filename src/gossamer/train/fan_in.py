"""A constant fan-in: which neurons are kept, and which inputs each of them has (SRigL, Lasby et al. 2024)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.patterns._rank import keep_top_rows
from gossamer.train.rules import comparable, top, top_at


def active_neurons(salient: Tensor, weight: Tensor, budget: int, gamma: float, least: int = 1) -> Tensor:
    """Which neurons are kept: those with at least ``gamma x fan-in`` salient weights (and at least one).

    There are always enough neurons for the budget, and never more than there are weights. Up to a quarter fewer are
    kept if rounding the fan-in down would otherwise lose a part of a small budget (in the paper it is lost). For equal
    counts, the neuron with the larger salient weights is kept. ``least``, which is not in the paper, keeps at least as
    many neurons as each of them has inputs, because a narrower layer would be a bottleneck.

    Parameters
    ----------
    salient
        Bool, neurons x inputs.
    weight
        Absolute weights, neurons x inputs.
    budget
        Weights that the layer may keep.
    gamma
        Share of the fan-in, before ablation, that must be salient.
    least
        Salient weights that a neuron always needs; 1 in the paper.

    Examples
    --------
    >>> import torch
    >>> salient = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=torch.bool)
    >>> active_neurons(salient, torch.ones(3, 4), budget=6, gamma=0.5)
    tensor([ True, False,  True])
    >>> active_neurons(salient, torch.ones(3, 4), budget=6, gamma=1.0)  # 6 weights don't fit into one neuron
    tensor([ True, False,  True])
    """
    neurons, inputs = salient.shape
    counts = torch.count_nonzero(salient, dim=1)
    active = counts >= max(1, int(gamma * (budget // neurons)))
    fewest, most = -(-budget // inputs), min(budget, neurons)
    number = min(max(int(active.sum()), fewest), most)
    if least > 1:
        number = max(min(number, int((counts >= least).sum())), min(number, max(fewest, math.isqrt(budget))))
    rounded = max(budget // round(budget / number), fewest)
    if 0.75 * number <= rounded < number:  # a few less, so that a small budget is not lost in rounding the fan-in down
        number = rounded
    if number == int(active.sum()):
        return active
    mass = (weight * salient).sum(1, dtype=torch.float64)
    rank = counts.double() + 0.5 * mass / (mass.max() + 1)
    return top(rank, number)


def fill(stay: Tensor, weight: Tensor, grow: Tensor, active: Tensor, k: int) -> Tensor:
    """Exactly ``k`` inputs for each active neuron: first the largest kept weights, then the largest growth scores.

    Weights and scores are absolute values.

    Examples
    --------
    >>> import torch
    >>> stay = torch.tensor([[True, True, True, False], [True, False, False, False]])
    >>> weight = torch.tensor([[3.0, 1.0, 2.0, 0.0], [1.0, 0.0, 0.0, 0.0]])
    >>> grow = torch.tensor([[0.0, 0.0, 0.0, 9.0], [0.0, 1.0, 3.0, 2.0]])
    >>> fill(stay, weight, grow, torch.tensor([True, True]), 2).int()
    tensor([[1, 0, 1, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    """
    if not bool(active.all()):  # most of a layer may be ablated
        out = torch.zeros_like(stay)
        out[active] = fill(stay[active], weight[active], grow[active], active[active], k)
        return out
    weight, grow = comparable(weight), comparable(grow)
    bits, shift = (torch.int64, -(2**63)) if weight.dtype == torch.float64 else (torch.int32, -(2**31))
    # Bits of floats from 0 order as integers do; a shift puts all that may grow below all that stays, exactly.
    key = grow.to(weight.dtype).view(bits) + shift
    torch.where(stay, weight.view(bits), key, out=key)
    return keep_top_rows(key, k)


def constant_fan_in(
    weight: Tensor, mask: Tensor, grad: Tensor, budget: int, fraction: float, gamma: float | None, least: int = 1
) -> Tensor:
    """One update of SRigL: the new mask of a layer.

    Parameters
    ----------
    weight, mask, grad
        Of the layer, neurons x inputs.
    budget
        Weights it may keep; each active neuron gets ``budget // active neurons``.
    fraction
        Share of the kept weights that may be replaced.
    gamma
        See :func:`active_neurons`; None keeps every neuron.
    least
        See :func:`active_neurons`.

    Examples
    --------
    >>> import torch
    >>> weight = torch.tensor([[4.0, 3.0, 0.0, 0.0], [0.1, 0.2, 0.0, 0.0]])
    >>> grad = torch.tensor([[0.0, 0.0, 5.0, 6.0], [1.0, 0.0, 0.0, 2.0]])
    >>> constant_fan_in(weight, weight != 0, grad, budget=4, fraction=0.5, gamma=None).int()
    tensor([[1, 1, 0, 0],
            [1, 0, 0, 1]], dtype=torch.int32)
    >>> constant_fan_in(weight, weight != 0, grad, budget=4, fraction=0.5, gamma=0.9).int()
    tensor([[1, 1, 1, 1],
            [0, 0, 0, 0]], dtype=torch.int32)
    """
    weight, grad = weight.abs(), grad.abs()
    places = mask.reshape(-1).nonzero().view(-1)  # few of many: what is kept is looked up once
    kept = len(places)
    values = weight.reshape(-1).index_select(0, places)
    keep = min(kept - int(kept * fraction), int(torch.count_nonzero(values)))
    stay = top_at(values, keep, places, mask.shape)
    active = torch.ones(len(mask), dtype=torch.bool, device=mask.device)
    if gamma is not None:
        salient = stay | top(grad, kept - keep)
        active = active_neurons(salient, weight, budget, gamma, least)
        if not bool(active.all()):
            left = active[places // mask.shape[1]]
            stay = top_at(values[left], keep, places[left], mask.shape)
    k = min(budget // int(active.sum()), mask.shape[1])
    return fill(stay, weight, grad, active, k)
