"""Optimizer state follows the mask of a weight.

A weight that is not kept has no state. A new weight has no momentum. Its squared gradients, by which
adaptive optimizers divide, start with what its row and its column have: with zeros there, and a bias correction that
has long ended, Adam's steps of a new weight are three to six times as long as those of its neighbours for a hundred
steps (0.1 / sqrt(0.001) at the first). The mean of the whole parameter is not enough: squared gradients of a
transformer differ by orders of magnitude from row to row and from column to column, and weights that grow by gradient
grow where they are large.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.core.join import gather
from gossamer.core.tensor import SparseTensor
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
        Where weights are new, and start with the squared gradients of their neighbours; None: with zeros.
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
        usual = usual_squares(whole(value), whole_mask(parameter) & ~grown)
        part, born = local(value), rows_of(grown, parameter)
        part.copy_(torch.where(born, rows_of(usual, parameter), part))
    clear(value, parameter)


def _start(value: Tensor, weight: Weight, grown: Tensor) -> None:
    """Let new weights start with what is usual in their rows and columns."""
    if isinstance(weight.format, Masked):
        value.copy_(torch.where(grown, usual_squares(value, weight.mask() & ~grown), value))
        return
    structure = weight.structure
    usual = usual_squares(SparseTensor(value, structure).to_dense(), weight.mask() & ~grown)
    born = gather(grown.to(value.dtype), structure).bool()  # a packed format has slots that hold nothing
    value.copy_(torch.where(born, gather(usual, structure), value))


def usual_squares(squares: Tensor, old: Tensor) -> Tensor:
    """Return for every position the mean of its row times that of its column, over that of all.

    Parameters
    ----------
    squares
        Of gradients.
    old
        Which of them count. A row or column without any counts as the mean of all; without any at all, 0.

    Examples
    --------
    >>> squares = torch.tensor([[1.0, 4.0], [0.0, 16.0]])
    >>> usual_squares(squares, squares > 0)
    tensor([[ 0.3571,  3.5714],
            [ 2.2857, 22.8571]])
    """
    matrix = squares.masked_fill(~old, 0).flatten(1) if squares.dim() > 1 else squares.masked_fill(~old, 0)[None]
    counts = old.reshape(matrix.shape)
    mean = _mean(squares, old)
    rows, columns = _means(matrix, counts, 1, mean), _means(matrix, counts, 0, mean) / (mean or 1.0)
    return (rows.to(squares.dtype) * columns.to(squares.dtype)).view(squares.shape)


def _means(matrix: Tensor, counts: Tensor, dim: int, otherwise: float) -> Tensor:
    """Means along a dimension over what counts."""
    count = counts.sum(dim, keepdim=True)
    total = matrix.sum(dim, keepdim=True, dtype=torch.float64)
    return torch.where(count > 0, total / count.clamp(min=1), otherwise)


def _mean(values: Tensor, old: Tensor) -> float:
    """The mean over weights that were kept before; 0 if there are none."""
    total = values.masked_fill(~old, 0).sum(dtype=torch.float64)  # alike for every format and number of ranks
    return float(total / old.sum().clamp(min=1))
