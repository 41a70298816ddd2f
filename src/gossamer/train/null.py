"""Null: keeps everything, so that the same script trains a dense model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.train.base import Method
from gossamer.train.layers import Layer


class Null(Method):
    """Keep everything: the dense baseline, with the same log and the same arguments.

    Parameters
    ----------
    model, optimizer, sparsity, options
        As for the other methods; sparsity, pattern and score are ignored.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.Null(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
    Null(1 layers, step 0, sparsity 0.00%)
    """

    dynamic = False

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, sparsity: Any = 0.0, **options: Any) -> None:
        super().__init__(model, optimizer, 0.0, **{**options, "init": None, "pattern": None, "score": None})

    def first_mask(self, layer: Layer) -> Tensor:
        """Everything."""
        return layer.everything()
