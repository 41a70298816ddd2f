"""Straight-through methods: all weights are trained, and the model computes with the sparse ones.

Outside ``optimizer.step()`` a weight is masked, as for all methods. For the step it gets its dense values back
(``masters.py``), is updated with its dense gradient, and is made sparse again. Dense values and optimizer state take
the memory of dense training. For a weight that FSDP2 has sharded, every rank has all dense values; its optimizer state
and gradient are sharded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.core.untraced import untraced
from gossamer.formats import Format, Masked
from gossamer.models.state import move_state, settled
from gossamer.models.weights import Weight
from gossamer.train import checks
from gossamer.train.base import Method
from gossamer.train.layers import Layer
from gossamer.train.masters import Master, write
from gossamer.train.rules import refuse_nan
from gossamer.train.shards import is_sharded, local, rows_of, whole
from gossamer.train.state import settle


class Straight(Method):
    """Base class of straight-through methods; a subclass decides which weights the model computes with.

    Parameters
    ----------
    model, optimizer, sparsity, options
        See :class:`gossamer.train.Method`. Under DDP gradients are already the mean of all ranks.
    """

    def _format_of(self, parameter: Tensor) -> Format:
        if self.format not in (None, Masked()):
            raise ValueError(f"{type(self).__name__} trains all weights: format={self.format} would save nothing")
        return Masked()

    @property
    def fixed(self) -> bool:
        """Are masks fixed from this step on?"""
        return self.until is not None and self.steps >= self.until

    def choose(self, layer: Layer) -> Tensor:
        """The mask for the next forward pass; ``layer.extra["dense"]`` has all weights, and none is NaN."""
        raise NotImplementedError

    def pull(self, layer: Layer, grad: Tensor) -> Tensor:
        """The gradient of all weights, from that of the sparse ones."""
        return grad

    def pull_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """Pull the gradients of many weights in few calls; return the weights that :meth:`pull` is left for."""
        return () if type(self).pull is Straight.pull else masters

    def choose_together(self, masters: Sequence[Master]) -> Sequence[Master]:
        """Write the masks and values of many weights in few calls; return those that :meth:`choose` is left for."""
        return masters

    def values(self, layer: Layer) -> Tensor:
        """The values that the model computes with, where the mask is True."""
        return layer.extra["dense"]

    def first_mask(self, layer: Layer) -> Tensor:
        """The first mask, from the current weights."""
        layer.extra["dense"] = layer.weight.clone()
        refuse_nan([layer.extra["dense"]])
        return self.choose(layer)

    def due(self, step: int) -> bool:
        """Masks follow the weights at every step; this is only about the log."""
        return step % self.every == 0

    def apply(self) -> None:
        """Masks were set by the optimizer step."""
        self.history.record(self.steps, self.layers, [layer.mask for layer in self.layers])

    def _ask(self) -> None:
        for layer in self.layers:
            held = layer.source.held
            if held is not None:
                held.open = True

    def _settle(self, weight: Weight, grown: Tensor | None = None) -> None:
        """The state is that of all weights, and does not change."""
        settled(self.optimizer, weight.parameter)

    def _sow(self) -> None:
        super()._sow()
        self._gather()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; load the model's and the optimizer's first."""
        super().load_state_dict(state)
        self._gather()

    @torch.no_grad()
    def close(self) -> None:
        """Detach from the optimizer. The masks remain; weights that are not kept lose their values and their state."""
        super().close()
        for master in self._masters:
            master.close()  # if an error has ended the last step
            weight = master.weight
            if weight.held is not None:
                weight.held.open = False
            if is_sharded(weight.parameter):
                settle(self.optimizer, weight)
            elif isinstance(weight.format, Masked):
                move_state(self.optimizer, weight.parameter, None, weight.structure)

    def _gather(self) -> None:
        """Find the weights, with all of their values."""
        weights = {id(layer.source): layer.source for layer in self.layers}
        self._masters = [
            Master(weight, [layer for layer in self.layers if layer.source is weight]) for weight in weights.values()
        ]
        self._opened: list[Master] = []

    @untraced
    @torch.no_grad()
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if checks.has_closure(args, kwargs):
            raise NotImplementedError(
                f"{type(self).__name__} changes the weights around optimizer.step(), so it doesn't support closures"
            )
        for master in self._masters:
            master.close()  # if an error has ended the last step
        self._opened = [master for master in self._masters if master.trains]
        for master in self.pull_together(self._opened):
            parameter = master.parameter
            grad = _dense_gradient(parameter)
            pulled = [self.pull(layer, layer.matrix(grad)) for layer in master.layers]
            _give_gradient(parameter, grad, master.gather(pulled))
        for master in self._opened:
            master.open()

    @untraced
    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True
        for master in self._opened:
            master.close()
        fixed = self.fixed
        left = self._opened if fixed else self.choose_together(self._opened)
        if not fixed:
            refuse_nan([master.dense for master in left])
        masks = [None if fixed else master.gather([self.choose(layer) for layer in master.layers]) for master in left]
        values = [master.gather([self.values(layer) for layer in master.layers]) for master in left]
        write(left, values, masks)


def _dense_gradient(parameter: Any) -> Tensor:
    """All of a weight's gradient; where the weight is sharded, from all ranks."""
    grad = parameter.grad
    return whole(grad) if is_sharded(grad) else grad


def _give_gradient(parameter: Any, before: Tensor, grad: Tensor) -> None:
    """Let the optimizer step by this gradient; where the weight is sharded, by this rank's rows of it."""
    if is_sharded(parameter):
        local(parameter.grad).copy_(rows_of(grad, parameter))
    elif grad is not before:
        parameter.grad = grad
