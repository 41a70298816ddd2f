"""SET (Mocanu et al. 2018): drop by magnitude, grow at random."""

from __future__ import annotations

from typing import ClassVar

from gossamer.train.exchange import Exchange
from gossamer.train.growth import Growth


class SET(Exchange):
    """Sparse evolutionary training: the smallest weights are dropped, and random positions grow.

    Parameters
    ----------
    model, optimizer, sparsity, growth, options
        See :class:`gossamer.train.exchange.Exchange` and :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.SET(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, until=1000)
    SET(1 layers, step 0, sparsity 90.00%)
    """

    usual: ClassVar[Growth] = Growth(score=None)
