"""Static: random masks that never change. What every dynamic method must beat."""

from __future__ import annotations

from gossamer.train.base import Method


class Static(Method):
    """Train with the masks drawn at the start.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 10))
    >>> gs.train.Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
    Static(2 layers, step 0, sparsity 90.00%)
    """

    dynamic = False
