"""Scores of a layer: where a score is computed from a weight and its context."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.scores import Score

GATHERED = {"inputs": "inputs", "grad": "gradients", "grads": "gradients"}
"""What a score may need, and the pass over the data that gives it; everything else the caller has to bring."""


def scores_of(score: Score, weight: Tensor, *, inputs: Tensor | None = None, **context: Any) -> Tensor:
    """How much each value of a matrix [outputs, inputs] matters.

    Parameters
    ----------
    score
        Any score.
    weight
        The matrix.
    inputs
        Norms of the inputs of each column, [groups, columns]; the rows of different groups have different inputs.
    **context
        Other context: `grad`, `grads`, `offset` (the index of the first value in the model).

    Examples
    --------
    >>> import torch
    >>> from gossamer.scores import Wanda
    >>> norms = torch.tensor([[1.0, 10.0], [5.0, 0.0]])
    >>> scores_of(Wanda(), torch.ones(2, 2), inputs=norms)
    tensor([[ 1., 10.],
            [ 5.,  0.]])
    """
    if inputs is None or "inputs" not in score.needs:
        return score(weight, **context)
    if len(inputs) == 1:
        return score(weight, inputs=inputs[0], **context)
    parts = [dict(context, inputs=norms) for norms in inputs]
    for name in ("grad", "grads"):
        if isinstance(context.get(name), Tensor):
            for part, piece in zip(parts, context[name].chunk(len(parts), -2), strict=True):
                part[name] = piece
    rows = weight.chunk(len(inputs))
    return torch.cat([score(w, **part) for w, part in zip(rows, parts, strict=True)])


def missing(score: Score) -> list[str]:
    """What a score needs that can't be computed from calibration data.

    Examples
    --------
    >>> from gossamer.scores import HardConcrete, Wanda
    >>> missing(Wanda()), missing(HardConcrete())
    ([], ['log_alpha'])
    """
    return [need for need in score.needs if need not in GATHERED]
