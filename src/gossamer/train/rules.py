"""Parts that methods are made of: who goes, who comes. A rule gives each weight of a layer a score."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gossamer.patterns._rank import keep_top
from gossamer.train.layers import Layer

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
    """Chance, from the method's own seed: the same on all ranks, and after a resume."""
    draw = torch.rand(layer.neurons, layer.fan_in, generator=layer.rng)
    return draw.to(layer.parameter.device)


def exchange(layer: Layer, count: int, drop: Rule = magnitude, grow: Rule = gradient) -> Tensor:
    """Drop the ``count`` weights of lowest score, grow as many; what was dropped just now may come back (as in RigL).

    Parameters
    ----------
    layer
        Whose mask is changed.
    count
        How many weights go.
    drop, grow
        Scores: of what is kept the lowest go, of what is not the highest come.

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
    """
    stay = top(drop(layer), layer.kept - count, layer.mask)
    return stay | top(grow(layer).masked_fill(stay, -torch.inf), count)


def top(scores: Tensor, count: int, among: Tensor | None = None) -> Tensor:
    """Mask of the ``count`` highest scores, among some positions or all; of equals, those with the lower index.

    Examples
    --------
    >>> import torch
    >>> top(torch.tensor([1.0, 5.0, 3.0]), 1, torch.tensor([True, False, True]))
    tensor([False, False,  True])
    """
    scores = comparable(scores)
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


def comparable(scores: Tensor) -> Tensor:
    """Scores as float32 or float64; NaN is an error."""
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if scores.numel() and bool(scores.max().isnan()):
        raise ValueError("a weight or gradient is NaN: training has diverged, and no pattern can be chosen")
    return scores
