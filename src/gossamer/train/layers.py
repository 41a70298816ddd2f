"""What a method works on: weights, each seen as a matrix of neurons x inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.formats import Format
from gossamer.models.names import LAYERS, Where, chosen, inputs_first, layer_weights
from gossamer.models.weights import Weight
from gossamer.train.shards import become_rows, is_sharded, whole, whole_mask


@dataclass
class Layer:
    """One matrix of weights: all of a parameter, or a third of an attention's in-projection.

    ``weight``, ``mask`` and ``grad`` are matrices of neurons x inputs; rules read them and return a mask.
    """

    name: str
    source: Weight
    shape: tuple[int, ...]  # outputs, inputs, kernel
    rows: slice | None = None  # of the parameter
    turned: bool = False  # the parameter stores inputs first
    last: bool = False
    budget: int = 0
    grad: Tensor | None = None
    rng: torch.Generator = field(default_factory=torch.Generator, repr=False)
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # what a method remembers

    @property
    def parameter(self) -> Any:
        """What an optimizer trains."""
        return self.source.parameter

    @property
    def neurons(self) -> int:
        """Number of outputs."""
        return self.shape[0]

    @property
    def fan_in(self) -> int:
        """Number of inputs of a neuron when dense."""
        return self.size // max(self.neurons, 1)

    @property
    def size(self) -> int:
        """Number of weights when dense."""
        return torch.Size(self.shape).numel()

    @property
    def weight(self) -> Tensor:
        """The weights, zero where the mask is False."""
        return self.matrix(dense_of(self.source))

    @property
    def mask(self) -> Tensor:
        """Which weights are kept."""
        return self.matrix(mask_of(self.source))

    @property
    def kept(self) -> int:
        """How many weights are kept."""
        return int(torch.count_nonzero(self.mask))

    def everything(self) -> Tensor:
        """A mask that keeps all."""
        return torch.ones(self.neurons, self.fan_in, dtype=torch.bool, device=self.parameter.device)

    def matrix(self, tensor: Tensor) -> Tensor:
        """This layer's part of a dense tensor of the parameter's shape, as neurons x inputs."""
        part = tensor if self.rows is None else tensor[self.rows]
        return (part.transpose(0, 1) if self.turned else part).reshape(self.neurons, self.fan_in).contiguous()

    def put(self, target: Tensor, matrix: Tensor) -> None:
        """Write a matrix of neurons x inputs into a dense tensor of the parameter's shape."""
        part = target if self.rows is None else target[self.rows]
        part = part.transpose(0, 1) if self.turned else part
        part.copy_(matrix.view(part.shape))


def mask_of(weight: Weight) -> Tensor:
    """The mask of a weight; of a masked one without a copy."""
    return whole_mask(weight.parameter) if is_sharded(weight.parameter) else weight.mask()


def dense_of(weight: Weight) -> Tensor:
    """All values of a weight; of a masked or dense one without a copy."""
    return whole(weight.parameter) if is_sharded(weight.parameter) else weight.dense()


def become(weight: Weight, values: Tensor | None, mask: Tensor, format: Format | None = None) -> None:
    """Give a weight other values (None: what it has) and another mask."""
    if is_sharded(weight.parameter):
        become_rows(weight.parameter, values, mask)
    else:
        weight.become(dense_of(weight) if values is None else values, mask, format)


def find_layers(model: nn.Module, where: Where, skip: Sequence[str], first: bool, last: bool) -> list[Layer]:
    """Return the layers to make sparse, in the order of the model.

    Left alone: depthwise and grouped transposed convolutions, weights tied to something else (an embedding), frozen
    weights, and all that is not linear, convolution or an attention's projection (LSTM, GRU, norms).
    """
    weights = layer_weights(model)
    names = [n for n, w in weights.items() if all(_suits(module) for module, _ in w.places)]
    names = [n for n in names if weights[n].parameter.requires_grad]
    picked = chosen(names, where)
    for glob in skip:
        out = set(chosen(weights, glob))
        picked = [n for n in picked if n not in out]
    if names and first:
        picked = [n for n in picked if n != names[0]]
    if names and last:
        picked = [n for n in picked if n != names[-1]]
    layers = [layer for n in picked for layer in _split(n, weights[n])]
    for layer in layers:
        layer.last = layer.name == names[-1]
    return layers


def _suits(module: nn.Module) -> bool:
    groups = getattr(module, "groups", 1)
    if groups > 1 and (getattr(module, "transposed", False) or groups == getattr(module, "in_channels", 0)):
        return False
    return isinstance(module, (*LAYERS, nn.MultiheadAttention)) or inputs_first(module)


def _split(name: str, weight: Weight) -> list[Layer]:
    module, shape = weight.module, tuple(weight.shape)
    if name.endswith("in_proj_weight"):
        each = shape[0] // 3
        parts = ((f"{name}[{part}]", slice(i * each, (i + 1) * each)) for i, part in enumerate("qkv"))
        return [Layer(part, weight, (each, *shape[1:]), rows=rows) for part, rows in parts]
    turned = bool(getattr(module, "transposed", False)) or inputs_first(module)
    if turned:
        shape = (shape[1], shape[0], *shape[2:])
    return [Layer(name, weight, shape, turned=turned)]
