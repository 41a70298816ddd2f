"""Wanda: weights times the norm of their activations (Sun et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Score, as_real


@dataclass(frozen=True)
class Wanda(Score):
    """|w| ||x||_2, with x the activations that the weight's column is multiplied with. Usually compared within rows.

    Notes
    -----
    Context: `inputs`, activations [tokens, in] (any dimensions before the last are tokens), or their column norms
    [in]. For a convolution `in` is the number of input channels, or of unfolded columns.

    Examples
    --------
    >>> import torch
    >>> weight = torch.tensor([[1.0, -2.0]])
    >>> Wanda()(weight, inputs=torch.tensor([[3.0, 0.0], [4.0, 1.0]]))
    tensor([[5., 2.]])
    """

    needs: ClassVar[tuple[str, ...]] = ("inputs",)
    by_row: ClassVar[bool] = True

    def rate(self, weight: Tensor, *, inputs: Tensor, **context: Any) -> Tensor:  # type: ignore[override]
        inputs = as_real("Wanda", "inputs", inputs).to(weight.device)
        shape = weight.shape[1:] if weight.dim() > 1 else weight.shape
        columns, channels = prod(shape), shape[0] if shape else 1
        width = inputs.shape[-1] if inputs.dim() else 1
        if width not in (columns, channels):
            allowed = f"{columns}" if columns == channels else f"{channels} (channels) or {columns} (unfolded)"
            raise ValueError(
                f"Wanda: inputs must be activations [tokens, in] or column norms [in] with in = {allowed} "
                f"for a weight of shape {tuple(weight.shape)}, got {tuple(inputs.shape)}."
            )
        norms = inputs if inputs.dim() < 2 else torch.linalg.vector_norm(inputs.flatten(0, -2), dim=0)
        if width == columns:
            return weight.abs() * norms.reshape(shape)
        return weight.abs() * norms.reshape(-1, *[1] * (len(shape) - 1))
