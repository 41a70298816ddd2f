"""RigL (Evci et al. 2020): drop by magnitude, grow by gradient."""

from __future__ import annotations

from typing import ClassVar

from gossamer.train.exchange import Exchange
from gossamer.train.growth import Growth


class RigL(Exchange):
    """Rigged lottery: the smallest weights are dropped, and positions with the largest gradients grow.

    Parameters
    ----------
    model, optimizer, sparsity, growth, options
        See :class:`gossamer.train.exchange.Exchange` and :class:`gossamer.train.Method`. On a language model
        ``fraction=0.1`` was better than the published 0.3, and fixed masks were as good.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, until=1000)
    RigL(1 layers, step 0, sparsity 90.00%)
    """

    usual: ClassVar[Growth] = Growth()
