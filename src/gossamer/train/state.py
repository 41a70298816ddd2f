"""Optimizer state follows the mask of a weight.

A weight that is not kept has no state. A new weight has no momentum. Its squared gradients, by which
adaptive optimizers divide, start as the mean of its parameter's: with zeros there, and a bias correction that has long
ended, Adam's steps of a new weight are three to six times as long as those of its neighbours for a hundred steps
(0.1 / sqrt(0.001) at the first).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import gather
from gossamer.formats import Masked
from gossamer.models.state import follow
from gossamer.models.weights import Weight
from gossamer.train.shards import clear, is_sharded, local, rows_of, whole, whole_mask

#: Sums and means of squared gradients, as torch's optimizers call them.
SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})


def settle(optimizer: torch.optim.Optimizer, weight: Weight, grown: Tensor | None = None) -> None:
    """Let the state of a weight have its mask.

    Parameters
    ----------
    optimizer, weight
        Whose state of which weight.
    grown
        Where weights are new, and start with the mean of squared gradients; None: with zeros.
    """
    parameter: Any = weight.parameter
    if not is_sharded(parameter):
        follow(optimizer, parameter)
    for name, value in optimizer.state.get(parameter, {}).items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0:
            born = grown if name in SQUARES else None
            if is_sharded(parameter):
                _shards(value, parameter, born)
            elif born is not None:
                _start(value, weight, born)


def _shards(value: Tensor, parameter: Any, grown: Tensor | None) -> None:
    if grown is not None:
        mean = _mean(whole(value), whole_mask(parameter), grown)
        local(value).masked_fill_(rows_of(grown, parameter), mean)
    clear(value, parameter)


def _start(value: Tensor, weight: Weight, grown: Tensor) -> None:
    """Let new weights start with the mean of the others."""
    if isinstance(weight.format, Masked):
        value.masked_fill_(grown, _mean(value, weight.mask(), grown))
        return
    structure = weight.structure
    kept, born = (gather(x.to(value.dtype), structure).bool() for x in (weight.mask(), grown))
    value.masked_fill_(born, _mean(value, kept, born))  # a packed format has slots that hold nothing


def _mean(values: Tensor, kept: Tensor, grown: Tensor) -> float:
    """The mean over weights that were kept before; 0 if there are none."""
    old = kept & ~grown
    total = values.masked_fill(~old, 0).sum(dtype=torch.float64)  # alike for every format and number of ranks
    return float(total / old.sum().clamp(min=1))
