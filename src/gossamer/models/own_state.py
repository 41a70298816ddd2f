"""Optimizer state that is not an array of positions (Adafactor, LBFGS), when a weight changes its shape."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FACTORS = ("row_var", "col_var")


def unfactored(state: dict[str, Any]) -> None:
    """Let Adafactor's state have its estimate of squared gradients at every position, instead of two factors of it.

    Examples
    --------
    >>> state = {"row_var": torch.tensor([[1.], [3.]]), "col_var": torch.tensor([[2., 2.]])}
    >>> unfactored(state)
    >>> state["variance"]
    tensor([[1., 1.],
            [3., 3.]])
    """
    if all(isinstance(state.get(name), Tensor) for name in _FACTORS):
        rows, columns = (state.pop(name) for name in _FACTORS)
        mean = rows.mean(-2, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)
        state["variance"] = rows @ columns / mean


def factored(state: dict[str, Any]) -> None:
    """Undo :func:`unfactored`, as Adafactor wants it of a parameter of two or more dimensions.

    Examples
    --------
    >>> state = {"variance": torch.tensor([[1., 1.], [3., 3.]])}
    >>> factored(state)
    >>> state["row_var"], state["col_var"]
    (tensor([[1.],
            [3.]]), tensor([[2., 2.]]))
    """
    variance = state.get("variance")
    if isinstance(variance, Tensor) and variance.dim() > 1:
        del state["variance"]
        state["row_var"], state["col_var"] = variance.mean(-1, keepdim=True), variance.mean(-2, keepdim=True)


def restart(optimizer: torch.optim.LBFGS) -> None:
    """Let LBFGS start again: its history is of all parameters in one vector, and can't follow one of them.

    Examples
    --------
    >>> optimizer = torch.optim.LBFGS([torch.nn.Parameter(torch.ones(2))])
    >>> restart(optimizer)
    """
    optimizer.state[optimizer.param_groups[0]["params"][0]].clear()
    optimizer._numel_cache = None
