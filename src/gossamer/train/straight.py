"""Straight-through methods: all weights train, and the model computes with the sparse ones.

Outside ``optimizer.step()`` a weight is Masked, as for all methods. For the step it is opened: it gets its dense
values back, is updated by its dense gradient, and is made sparse again. Dense values and optimizer state cost what they
cost in dense training. Of a weight that FSDP2 has sharded every rank holds all dense values; its optimizer state and
gradient stay sharded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.formats import Format, Masked
from gossamer.models.home import home_of, version_of
from gossamer.models.masked import clear
from gossamer.models.state import settled
from gossamer.models.weights import Weight
from gossamer.train import checks
from gossamer.train.base import Method
from gossamer.train.layers import Layer, become, dense_of, mask_of
from gossamer.train.rules import refuse_nan
from gossamer.train.shards import is_sharded, local, rows_of, whole


class Straight(Method):
    """Base of straight-through methods; a subclass says which weights the model computes with.

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

    def values(self, layer: Layer) -> Tensor:
        """What the model computes with, where the mask is True."""
        return layer.extra["dense"]

    def first_mask(self, layer: Layer) -> Tensor:
        """The first mask, from the weights as they are."""
        layer.extra["dense"] = layer.weight.clone()
        refuse_nan([layer.extra["dense"]])
        return self.choose(layer)

    def due(self, step: int) -> bool:
        """Masks follow the weights at every step; the log is written every so often."""
        return step % self.every == 0

    def apply(self) -> None:
        """Masks were set by the optimizer step."""
        self.history.record(self.steps, self.layers, [layer.mask for layer in self.layers])

    def _ask(self) -> None:
        for layer in self.layers:
            if layer.source.held is not None:
                layer.source.held.open = True

    def _settle(self, weight: Weight, grown: Tensor | None = None) -> None:
        """State is that of all weights, and stays as it is."""
        settled(self.optimizer, weight.parameter)

    @torch.no_grad()
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if checks.has_closure(args, kwargs):
            raise NotImplementedError(
                f"{type(self).__name__} opens the weights for optimizer.step(): no closure, please"
            )
        opened = {id(x.source): x.source for x in self.layers if x.parameter.grad is not None}
        self._open = {key: (w, mask_of(w).clone() if self.fixed else None) for key, w in opened.items()}
        every = self._parts()
        for key, weight in opened.items():
            parts = every[key]
            if _is_whole(parts):
                (layer,) = parts
                dense, grad = layer.extra["dense"], self.pull(layer, weight.parameter.grad)  # type: ignore[arg-type]
            else:
                grad = _dense_gradient(weight.parameter)
                dense = torch.zeros_like(grad)
                for layer in parts:
                    layer.put(dense, layer.extra["dense"])
                    layer.put(grad, self.pull(layer, layer.matrix(grad).clone()))
            _give(weight, dense, None)
            _give_gradient(weight.parameter, grad)
            settled(optimizer, weight.parameter)

    @torch.no_grad()
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._stepped = True
        refuse_nan([dense_of(weight) for weight, fixed in self._open.values() if fixed is None])
        every = self._parts()
        for key, (weight, fixed) in self._open.items():
            now, parts = dense_of(weight), every[key]
            for layer in parts:
                layer.extra["dense"] = layer.matrix(now).clone()
            if _is_whole(parts):
                (layer,) = parts
                mask = self.choose(layer) if fixed is None else fixed
                values = self.values(layer)
            else:
                mask = torch.zeros_like(now, dtype=torch.bool) if fixed is None else fixed
                values = torch.zeros_like(now)
                for layer in parts:
                    if fixed is None:
                        layer.put(mask, self.choose(layer))
                    layer.put(values, self.values(layer))
            _give(weight, values, mask)
            settled(optimizer, weight.parameter)

    def _parts(self) -> dict[int, list[Layer]]:
        """The layers of each weight."""
        found: dict[int, list[Layer]] = {}
        for layer in self.layers:
            found.setdefault(id(layer.source), []).append(layer)
        return found


def _is_whole(layers: list[Layer]) -> bool:
    """Is a weight one layer, stored as its matrix, on one rank?"""
    first = layers[0]
    plain = len(layers) == 1 and first.part is None and not first.inputs_first and not is_sharded(first.parameter)
    return plain and first.shape == (first.outputs, first.inputs) == first.source.shape


def _give(weight: Weight, values: Tensor, mask: Tensor | None) -> None:
    """Give a weight other values and another mask, None for everything; what an optimizer has of it stays as it is."""
    parameter: Any = weight.parameter
    home = None if is_sharded(parameter) else home_of(parameter)
    if home is None or home.mask is None:
        become(weight, values, torch.ones_like(values, dtype=torch.bool) if mask is None else mask)
        return
    parameter.data.copy_(values)
    if mask is None:
        home.mask.fill_(True)
    else:
        home.mask.copy_(mask)
        clear(parameter, home.mask)
    home.version = version_of(home.mask)


def _dense_gradient(parameter: Any) -> Tensor:
    """All of a weight's gradient, to write to."""
    grad = parameter.grad
    assert grad is not None
    if is_sharded(grad):
        return whole(grad).clone()
    return grad.clone()


def _give_gradient(parameter: Any, grad: Tensor) -> None:
    """Let the optimizer step by this gradient; where the weight is sharded, by this rank's rows of it."""
    if is_sharded(parameter):
        local(parameter.grad).copy_(rows_of(grad, parameter))
    else:
        parameter.grad = grad
