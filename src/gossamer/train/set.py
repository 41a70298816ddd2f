"""SET (Mocanu et al. 2018): drop by magnitude, grow at random."""

from __future__ import annotations

from torch import Tensor

from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.rules import exchange, magnitude, random


class SET(Method):
    """Sparse evolutionary training: the smallest weights go, random ones come.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.SET(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, until=1000)
    SET(1 layers, step 0, sparsity 90.00%)
    """

    def update(self, layer: Layer) -> Tensor:
        """Exchange a share of the weights."""
        return exchange(layer, int(self.share * layer.kept), drop=magnitude, grow=random)
