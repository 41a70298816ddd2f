"""What an optimizer remembers of a weight follows the weight's mask.

Nothing is remembered of a weight that is not kept. A grown one has no momentum. Its squared gradients, by which
adaptive optimizers divide, start as the mean of its parameter's: with zeros there, and a bias correction that has long
ended, Adam's steps of a new weight are three to six times as long as those of its neighbours for a hundred steps
(0.1 / sqrt(0.001) at the first).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.tensor import SparseTensor, cleared, gather
from gossamer.formats import Masked
from gossamer.train.layers import dense_of, mask_of
from gossamer.train.shards import clear, is_sharded, local, rows_of, whole

#: Sums and means of squared gradients, as torch's optimizers call them.
SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"})


def settle(optimizer: torch.optim.Optimizer, parameter: SparseTensor, grown: Tensor | None = None) -> None:
    """Let the state of a weight have its mask.

    Parameters
    ----------
    optimizer, parameter
        Whose state of which weight.
    grown
        Where weights are new, and start with the mean of squared gradients; None: with zeros.
    """
    state = optimizer.state.get(parameter, {})
    for name, value in state.items():
        if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0:
            born = grown if name in SQUARES else None
            state[name] = _shards(value, parameter, born) if is_sharded(parameter) else _rest(value, parameter, born)


def _shards(value: Tensor, parameter: Any, grown: Tensor | None) -> Tensor:
    if grown is not None:
        mean = _mean(whole(value), mask_of(parameter), grown)
        local(value).masked_fill_(rows_of(grown, parameter), mean)
    clear(value, parameter)
    return value


def _rest(value: Tensor, parameter: SparseTensor, grown: Tensor | None) -> SparseTensor:
    if isinstance(parameter.format, Masked):  # a fast path of what is below
        values, mask = dense_of(value), mask_of(parameter)
        if grown is not None:
            values.masked_fill_(grown, _mean(values, mask, grown))
        return SparseTensor(cleared(values, mask, inplace=True), parameter.structure)
    values = gather(value, parameter.structure)
    if grown is not None:
        kept, born = (gather(x.to(values.dtype), parameter.structure).bool() for x in (parameter.mask(), grown))
        values = values.masked_fill(born, _mean(values, kept, born))  # a packed format has slots that hold nothing
    return SparseTensor(values, parameter.structure)


def _mean(values: Tensor, kept: Tensor, grown: Tensor) -> float:
    """The mean over weights that were kept before; 0 if there are none."""
    old = kept & ~grown
    total = values.masked_fill(~old, 0).sum(dtype=torch.float64)  # alike for every format and number of ranks
    return float(total / old.sum().clamp(min=1))
