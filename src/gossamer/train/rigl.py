"""RigL (Evci et al. 2020): drop by magnitude, grow by gradient."""

from __future__ import annotations

from torch import Tensor

from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.rules import exchange, gradient, magnitude


class RigL(Method):
    """Rigged lottery: the smallest weights go, those with the largest gradients come.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, until=1000)
    RigL(1 layers, step 0, sparsity 90.00%)
    """

    needs_gradient = True

    def update(self, layer: Layer) -> Tensor:
        """Exchange a share of the weights."""
        return exchange(layer, int(self.share * layer.kept), drop=magnitude, grow=gradient)
