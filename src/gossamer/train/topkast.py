"""Top-KAST (Jayakumar et al. 2020): compute with the top-k weights, update a larger set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.choosing import Chooser, Chosen
from gossamer.kernels.largest import Wanted
from gossamer.patterns import Pattern, Unstructured
from gossamer.scores import Magnitude
from gossamer.train import checks
from gossamer.train.distributions import budgets
from gossamer.train.layers import Layer
from gossamer.train.masters import Master, choose
from gossamer.train.rules import DIVERGED, select, top
from gossamer.train.straight import Straight


class TopKAST(Straight):
    """Compute with the largest weights, and update a larger set, so that other weights can replace them.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`; the sparsity, or the pattern, is that of the forward pass. From ``until``
        on, masks are fixed; None: they follow the weights until the end.
    backward
        Sparsity of the set that is updated, below ``sparsity``: 0.8 by default, or less so that it is at least twice as
        large as the set of the forward pass.
    penalty
        L2 penalty of the weights; divided by the density for those that are updated but not used.
    refresh
        Optimizer steps between selections of both sets. On a GPU, both are selected for the whole model in few
        launches, if weights are scored by magnitude and there is no pattern.

    Examples
    --------
    >>> import torch, gossamer as gs
    >>> model = torch.nn.Linear(20, 30)
    >>> gs.train.TopKAST(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.9, backward=0.8)
    TopKAST(1 layers, step 0, sparsity 90.00%)
    """

    dynamic = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        sparsity: float | str | Pattern | None = None,
        *,
        backward: float | None = None,
        penalty: float = 1e-4,
        refresh: int = 1,
        **options: Any,
    ) -> None:
        checks.refresh(type(self).__name__, refresh)
        self.backward, self.penalty, self.refresh = backward, penalty, refresh
        self._updated: dict[str, int] = {}  # the size of each layer's larger set
        self._chooser = Chooser(Unstructured(0.0))  # the sizes are those of the layers
        self._wider: dict[str, Tensor] = {}  # larger sets that a kernel has selected ...
        self._fresh: dict[str, Any] = {}  # ... from the current weights
        super().__init__(model, optimizer, sparsity, **{"init": None, **options})

    def _share_out(self, sparsity: float | None) -> float:
        found = super()._share_out(sparsity)
        if self.backward is None:
            self.backward = max(0.0, min(0.8, round(1 - 2 * (1 - found), 6)))
        if not 0 <= self.backward <= found:
            raise ValueError(f"TopKAST: backward={self.backward!r} must be from 0 to sparsity={found!r}")
        for layer in self.layers:
            (size,) = budgets([layer.shape], self.backward, "uniform")
            self._updated[layer.name] = max(size, layer.budget)
        return found

    @property
    def fixed(self) -> bool:
        """Are masks fixed in the current step?"""
        return super().fixed or (self.steps + 1) % self.refresh != 0

    def choose(self, layer: Layer) -> Tensor:
        """The weights with the highest scores, by default the largest."""
        scores = self.saliency(layer, layer.extra["dense"])
        mask = select(layer, scores) if layer.pattern is not None else self._top(layer, scores, layer.budget)
        self._fresh.pop(layer.name, None)
        if self.refresh > 1:
            layer.extra["updated"] = self._top(layer, scores, self._updated[layer.name]) | mask
        return mask

    def _top(self, layer: Layer, scores: Tensor, count: int) -> Tensor:
        """The highest scores. Weights have no NaN when methods choose, and then magnitudes have none."""
        return top(scores, count, checked=isinstance(self.score, Magnitude))

    def choose_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """Both sets on a GPU, for the whole model in few launches. NaN is noticed in the next step."""
        if not self._by_kernel:
            return masters
        if self._chooser.found_nan():
            raise ValueError(DIVERGED)
        return choose(masters, self._chooser, self._wanted)

    @property
    def _by_kernel(self) -> bool:
        return self.pattern is None and isinstance(self.score, Magnitude)

    def _wanted(self, layer: Layer) -> Wanted:
        """The sizes of both sets, and where the larger one is written."""
        dense = layer.extra["dense"]
        sets, name = (self._wider, layer.name) if self.refresh == 1 else (layer.extra, "updated")
        if name not in sets or (sets[name].shape, sets[name].device) != (dense.shape, dense.device):
            sets[name] = torch.empty(dense.shape, dtype=torch.bool, device=dense.device)
        self._fresh[layer.name] = _key(dense)
        return Wanted(layer.budget, self._updated[layer.name], sets[name])

    def _gather(self) -> None:
        super()._gather()
        self._fresh.clear()

    def pull_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """Select the larger sets on a GPU, where the last step has not: masks were fixed, or this is the first one."""
        if self._by_kernel and self.refresh == 1:
            layers = [layer for master in masters for layer in master.layers if not self._is_fresh(layer)]
            layers = [layer for layer in layers if Chosen(*[layer.extra["dense"]] * 3).plain]
            wanted = [self._wanted(layer) for layer in layers]
            self._chooser.masks([layer.extra["dense"] for layer in layers], wanted)
        return masters

    def _is_fresh(self, layer: Layer) -> bool:
        return bool(self._fresh.get(layer.name) == _key(layer.extra["dense"]))

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient in the larger set, and the pull there."""
        dense, inside = layer.extra["dense"], layer.mask
        wider = layer.extra.get("updated")
        if wider is None and self._is_fresh(layer):
            wider = self._wider[layer.name] | inside
        if wider is None:
            wider = self._top(layer, self.saliency(layer, dense), self._updated[layer.name]) | inside
        self._fresh.pop(layer.name, None)  # the step changes the weights
        density = layer.budget / layer.size
        return (grad + self.penalty * torch.where(inside, dense, dense / density)) * wider


def _key(dense: Tensor) -> tuple[Any, ...]:
    """What changes if the weights are moved or converted between steps."""
    return dense.data_ptr(), dense.dtype, dense.device
