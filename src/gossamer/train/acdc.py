"""AC/DC (Peste et al. 2021): alternating phases of dense and sparse training, with a sparse model at the end."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gossamer.patterns import Pattern
from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.rules import select


class ACDC(Method):
    """Alternating compressed / decompressed training.

    The model is dense until ``start``, then sparse for ``every`` steps, dense for ``every`` steps, and so on. A sparse
    phase keeps the weights with the highest scores; in a dense phase the others start from 0 and train too. From
    ``until`` on, the model is sparse.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`. ``every`` is the length of a phase. The paper uses five to ten epochs, with
        ``start`` after the first of them, and ``until`` before the last quarter.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(16, 8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> method = gs.train.ACDC(model, optimizer, "2:4", start=2, every=2, until=7)
    >>> for _ in range(8):
    ...     model(torch.randn(4, 16)).square().sum().backward()
    ...     optimizer.step(); optimizer.zero_grad(); method.step()
    ...     print(model.weight.sparsity, end=" ")
    0.0 0.5 0.5 0.0 0.0 0.5 0.5 0.5
    """

    needs_until: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def first_mask(self, layer: Layer) -> Tensor:
        """Everything."""
        return layer.everything()

    def due(self, step: int) -> bool:
        """Where a phase begins."""
        return (super().due(step) or step == self.until) and self._is_sparse(step) != self._is_sparse(step - 1)

    def update(self, layer: Layer) -> Tensor:
        """The weights with the highest scores, or everything."""
        return select(layer, self.saliency(layer)) if self._is_sparse(self.steps) else layer.everything()

    def _is_sparse(self, step: int) -> bool:
        """Does the model train sparse after this step?"""
        if self.until is not None and step >= self.until:
            return True
        return step >= self.start and (step - self.start) // self.every % 2 == 0
