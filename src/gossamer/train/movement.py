"""Movement pruning (Sanh et al. 2020): keeps weights that training moves away from zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.schedules import at_step, cubic
from gossamer.scores import Movement as Score
from gossamer.train.layers import Layer
from gossamer.train.rules import comparable, top
from gossamer.train.straight import Straight


class Movement(Straight):
    """Prune by movement, for fine-tuning: sparsity grows along a cubic to ``until``, then masks are fixed.

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

    needs_until: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = {"score": "it chooses by movement; GMP prunes gradually by any score"}

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        **options: Any,
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
        start, until = self.start, self.until or 0
        share = max(at_step(cubic, self.steps + 1 - start, until - start, 0.0, 1.0), 0.0)
        if layer.pattern is not None:
            return layer.pattern.towards(share).select(comparable(layer.extra["movement"]))
        count = layer.size - round(share * (layer.size - layer.budget))
        return top(layer.extra["movement"], count)
