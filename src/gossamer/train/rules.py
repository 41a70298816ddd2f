"""Building blocks of methods: which weights are dropped, which grow. A rule scores each weight of a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from gossamer.methods import scores_of
from gossamer.patterns import Pattern
from gossamer.patterns._rank import keep_top, tame
from gossamer.scores import Score
from gossamer.train.layers import Layer

DIVERGED = "a weight or gradient is NaN: training has diverged, and no pattern can be chosen"

#: A score for every position of a layer, neurons x inputs; higher stays, or grows first.
Rule = Callable[[Layer], Tensor]


def magnitude(layer: Layer) -> Tensor:
    """The absolute weight."""
    return layer.weight.abs()


def gradient(layer: Layer) -> Tensor:
    """The absolute gradient of the loss, at every position."""
    if layer.grad is None:
        raise ValueError(
            f"{layer.name} has no dense gradient: set needs_gradient = True in the method that asks for it"
        )
    return layer.grad.abs()


def random(layer: Layer) -> Tensor:
    """Random scores from the method's seed: the same on all ranks, and after resuming."""
    draw = torch.rand(layer.outputs, layer.inputs, generator=layer.rng)
    return draw.to(layer.parameter.device)


def rate(score: Score, layer: Layer, weight: Tensor, drawn: int = 0) -> Tensor:
    """Any score of a matrix of a layer, with the layer's gradient if it has one.

    Parameters
    ----------
    score, layer, weight
        The score, and the matrix [outputs, inputs] to score.
    drawn
        Numbers that a random score has drawn before.
    """
    grad = layer.grad
    known = {} if grad is None else {"grad": grad, "grads": grad.unsqueeze(0)}
    return scores_of(score, weight, offset=layer.offset + drawn, **known)


def exchange(layer: Layer, count: int, drop: Rule = magnitude, grow: Rule = gradient) -> Tensor:
    """Drop the ``count`` weights with the lowest scores and grow as many; dropped weights may come back (as in RigL).

    In a layer with a pattern, kept weights rank before candidates to grow, and the pattern selects; see :func:`staying`
    for what is dropped together.

    Parameters
    ----------
    layer
        Whose mask is changed.
    count
        How many weights are dropped; the maximum, if they are dropped in units.
    drop, grow
        Scores: the kept weights with the lowest scores are dropped, and the others with the highest scores grow.

    Returns
    -------
    Tensor
        The new mask, with as many weights as the old one.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.train.layers import Layer
    >>> weight = gs.nn.all_weights(torch.nn.Linear(4, 1))["weight"]
    >>> weight.become(torch.tensor([[4.0, 1.0, 0.0, 0.0]]), torch.tensor([[True, True, False, False]]), gs.Masked())
    >>> layer = Layer("w", weight, (1, 4), grad=torch.tensor([[0.0, 0.0, -3.0, 2.0]]))
    >>> exchange(layer, 1).int()
    tensor([[1, 0, 1, 0]], dtype=torch.int32)
    >>> layer.pattern = gs.NM(1, 2)  # its first group loses a weight; the second has nothing that stays
    >>> exchange(layer, 1).int()
    tensor([[1, 0, 1, 0]], dtype=torch.int32)
    """
    scores = drop(layer)
    if layer.pattern is None:
        stay = top(scores, layer.kept - count, layer.mask)
        return stay | top(grow(layer).masked_fill(stay, -torch.inf), count)
    stay = staying(layer, layer.pattern, count, scores)
    return layer.pattern.select(in_order(stay, scores, grow(layer)))


def select(layer: Layer, scores: Tensor, among: Tensor | None = None, pattern: Pattern | None = None) -> Tensor:
    """The mask of the highest scores: in the pattern (None: the layer's), or as many as the layer's budget.

    Positions in ``among`` rank before all others.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> from gossamer.train.layers import Layer
    >>> layer = Layer("w", gs.nn.all_weights(torch.nn.Linear(4, 1))["weight"], (1, 4), budget=1)
    >>> select(layer, torch.tensor([[1.0, 2.0, 3.0, 4.0]])).int()
    tensor([[0, 0, 0, 1]], dtype=torch.int32)
    >>> select(layer, torch.tensor([[1.0, 2.0, 3.0, 4.0]]), pattern=gs.NM(1, 2)).int()
    tensor([[0, 1, 0, 1]], dtype=torch.int32)
    """
    pattern = pattern or layer.pattern
    if pattern is None:
        return top(scores, layer.budget, among)
    scores = comparable(scores)
    return pattern.select(scores if among is None else in_order(among, scores, torch.zeros_like(scores)))


def staying(layer: Layer, pattern: Pattern, count: int, scores: Tensor) -> Tensor:
    """Which weights of a layer are kept when at most ``count`` with the lowest scores are dropped.

    Weights that a pattern keeps together are dropped together: the blocks with the lowest mean. If rows share columns
    (V:N:M), half of the dropped weights are in shared columns and half are single weights; otherwise the sum over the
    rows of a block would always keep the columns of the first mask.
    """
    mask, choice = layer.mask, pattern.choice(layer.outputs)
    if pattern.unit != (1, 1):
        return mask & ~_lowest_units(mask, scores, pattern.unit, count)
    if choice is not None and choice.shared is not None:
        columns = _lowest_units(mask, scores, (choice.rows, 1), count // 2)
        gone = int(torch.count_nonzero(columns & mask))
        mask, count = mask & ~columns, min(count - gone, count - count // 2)
    return top(scores, int(torch.count_nonzero(mask)) - count, mask)


def _lowest_units(mask: Tensor, scores: Tensor, unit: tuple[int, int], count: int) -> Tensor:
    """The units of lowest mean score over their kept weights, as many as have at most ``count`` kept weights."""
    rows, columns = mask.shape
    height, width = min(unit[0], rows), min(unit[1], columns)
    edges = (0, -columns % width, 0, -rows % height)
    shape = (-(-rows // height), height, -(-columns // width), width)
    kept = pad(mask, edges).view(shape).sum((1, 3))
    total = pad(comparable(scores).double().masked_fill(~mask, 0.0), edges).view(shape).sum((1, 3))
    mean = torch.where(kept > 0, total / kept.clamp(min=1), torch.inf).reshape(-1)
    order = mean.argsort(stable=True)
    chosen = torch.zeros_like(mean, dtype=torch.bool)
    chosen[order] = (kept.reshape(-1)[order].cumsum(0) <= count) & mean[order].isfinite()
    units = chosen.view(shape[0], shape[2])
    return units.repeat_interleave(height, 0)[:rows].repeat_interleave(width, 1)[:, :columns]


def in_order(first: Tensor, scores: Tensor, others: Tensor) -> Tensor:
    """Scores for a pattern by which positions in ``first`` rank before all others: from 2 to 3, the others 0 to 1.

    Examples
    --------
    >>> import torch
    >>> in_order(torch.tensor([True, True, False]), torch.tensor([1.0, 5.0, 0.0]), torch.tensor([0.0, 0.0, 90.0]))
    tensor([2.2000, 3.0000, 1.0000], dtype=torch.float64)
    """
    return torch.where(first, 2 + _from_0_to_1(scores), _from_0_to_1(others))


def _from_0_to_1(scores: Tensor) -> Tensor:
    scores = tame(comparable(scores).double())
    if not scores.numel():
        return scores
    low, high = scores.aminmax()
    return (scores - low) / (high - low).clamp(min=torch.finfo(torch.float64).tiny)


def top(scores: Tensor, count: int, among: Tensor | None = None, checked: bool = False) -> Tensor:
    """Mask of the ``count`` highest scores, among some positions or all; of equals, those with the lower index.

    ``checked``: none is known to be NaN, so that the host need not wait for a GPU to say so.

    Examples
    --------
    >>> import torch
    >>> top(torch.tensor([1.0, 5.0, 3.0]), 1, torch.tensor([True, False, True]))
    tensor([False, False,  True])
    """
    scores = comparable(scores, checked)
    if among is None:
        return keep_top(scores, min(count, scores.numel()))
    places = among.reshape(-1).nonzero().view(-1)  # few of many, most often
    return top_at(scores.reshape(-1).index_select(0, places), count, places, among.shape)


def top_at(scores: Tensor, count: int, places: Tensor, shape: Sequence[int]) -> Tensor:
    """Mask of the ``count`` highest of the scores at some places of a shape (ascending row-major numbers).

    Examples
    --------
    >>> import torch
    >>> top_at(torch.tensor([1.0, 3.0]), 1, torch.tensor([0, 2]), (3,))
    tensor([False, False,  True])
    """
    kept = keep_top(comparable(scores), min(count, len(places)))
    out = torch.zeros(torch.Size(shape).numel(), dtype=torch.bool, device=places.device)
    out[places[kept]] = True
    return out.view(shape)


def comparable(scores: Tensor, checked: bool = False) -> Tensor:
    """Scores as float32 or float64; NaN is an error, unless they are checked."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if not checked and scores.numel() and bool(scores.max().isnan()):
        raise ValueError(DIVERGED)
    return scores


def refuse_nan(weights: Sequence[Tensor]) -> None:
    """Raise if any of the tensors has a NaN; the host waits for a GPU only once.

    Examples
    --------
    >>> import torch
    >>> refuse_nan([torch.zeros(2), torch.ones(3)])
    """
    some = [weight.detach() for weight in weights if weight.numel()]
    largest = torch._foreach_max(some) if some else ()  # NaN is larger than all
    if some and bool(torch.stack([one.float().to(some[0].device) for one in largest]).isnan().any()):
        raise ValueError(DIVERGED)
