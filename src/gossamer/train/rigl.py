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
        See :class:`gossamer.train.exchange.Exchange` and :class:`gossamer.train.Method`. The defaults are the published
        ones, and suit images. On a language model they were level with fixed masks, and
        ``growth="even gradient", fraction=0.1`` a little better.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.RigL(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9, until=1000)
    RigL(1 layers, step 0, sparsity 90.00%)

    For a transformer:

    >>> model = torch.nn.Linear(20, 30)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    >>> method = gs.train.RigL(model, optimizer, 0.9, growth="even gradient", fraction=0.1, until=1000)
    """

    usual: ClassVar[Growth] = Growth()
