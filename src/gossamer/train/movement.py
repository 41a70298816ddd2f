"""Movement pruning (Sanh et al. 2020): weights that training moves away from zero stay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.schedules import at_step, cubic
from gossamer.scores import Movement as Score
from gossamer.train.layers import Layer
from gossamer.train.rules import top
from gossamer.train.straight import Straight


class Movement(Straight):
    """Prune by movement, for fine-tuning: sparsity grows along a cubic to ``until``.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.Movement(model, optimizer, 0.75, until=2)
    >>> for _ in range(3):
    ...     model(torch.randn(4, 16)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    >>> model.weight.sparsity
    0.75
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, sparsity: float = 0.9, **options: Any
    ) -> None:
        super().__init__(model, optimizer, sparsity, **{"init": None, "distribution": "uniform", **options})

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """Add to the movement; only weights that the model computed with are updated."""
        layer.extra["movement"] = Score.accumulate(layer.extra.get("movement"), layer.extra["dense"], grad)
        return grad * layer.mask

    def choose(self, layer: Layer) -> Tensor:
        """The weights of largest movement."""
        if "movement" not in layer.extra:
            return layer.everything()
        now = at_step(cubic, self.steps + 1, self.until or 0, 0.0, self.sparsity)
        share = 0.0 if self.sparsity == 0 else now / self.sparsity
        count = layer.size - round(share * (layer.size - layer.budget))
        return top(layer.extra["movement"], count)
