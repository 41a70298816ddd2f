"""What a method works on: weights, each seen as a matrix of neurons x inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor, cleared, scatter
from gossamer.formats import Format, Masked, Structure
from gossamer.models.names import LAYERS, Where, chosen, layer_weights
from gossamer.ops.sparsify import apply_mask
from gossamer.train.shards import become_rows, is_sharded, whole, whole_mask


@dataclass
class Layer:
    """One matrix of weights: all of a parameter, or a third of an attention's in-projection.

    ``weight``, ``mask`` and ``grad`` are matrices of neurons x inputs; rules read them and return a mask.
    """

    name: str
    parameter: SparseTensor
    shape: tuple[int, ...]  # outputs, inputs, kernel
    rows: slice | None = None  # of the parameter
    turned: bool = False  # the parameter stores inputs first
    last: bool = False
    budget: int = 0
    grad: Tensor | None = None
    rng: torch.Generator = field(default_factory=torch.Generator, repr=False)
    extra: dict[str, Any] = field(default_factory=dict, repr=False)  # what a method remembers

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
        return self.matrix(dense_of(self.parameter))

    @property
    def mask(self) -> Tensor:
        """Which weights are kept."""
        return self.matrix(mask_of(self.parameter))

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


def mask_of(parameter: SparseTensor) -> Tensor:
    """The mask of a weight; of a Masked one without a copy."""
    if is_sharded(parameter):
        return whole_mask(parameter)
    if not isinstance(parameter.format, Masked):
        return parameter.mask()
    (mask,) = parameter.structure.arrays.values()
    return mask.view(parameter._dense_shape)


def dense_of(parameter: Tensor) -> Tensor:
    """All values of a weight; of a Masked one without a copy."""
    if is_sharded(parameter):
        return whole(parameter)
    if not isinstance(parameter, SparseTensor):
        return parameter.detach()
    return (
        parameter._values if isinstance(parameter.format, Masked) else scatter(parameter._values, parameter.structure)
    )


def sparse(values: Tensor, mask: Tensor, format: Format) -> SparseTensor:
    """A sparse tensor of these values where the mask is True; for Masked they are zeroed elsewhere, in place."""
    if not isinstance(format, Masked):
        return apply_mask(values, mask, format)  # type: ignore[return-value]
    flat = mask.contiguous().view(-1)
    structure = Structure(format, values.shape, {f"mask{max(values.dim(), 1) - 1}": flat}, values.device)
    return SparseTensor(cleared(values, mask, inplace=True), structure)


def become(parameter: SparseTensor, values: Tensor | None, mask: Tensor) -> None:
    """Give a parameter other values (None: what it has) and another mask."""
    if is_sharded(parameter):
        return become_rows(parameter, values, mask)
    values = dense_of(parameter) if values is None else values
    new = sparse(values, mask, parameter.format)
    parameter._values = new._values
    parameter._set_structure(new.structure)


def find_layers(model: nn.Module, where: Where, skip: Sequence[str], first: bool, last: bool) -> list[Layer]:
    """Return the layers to make sparse, in the order of the model.

    Left alone: depthwise and grouped transposed convolutions, weights tied to something else (an embedding), frozen
    weights, and all that is not linear, convolution or an attention's projection (LSTM, GRU, norms).
    """
    weights = layer_weights(model)
    owners = _owners(model)
    names = [n for n in weights if all(_suits(m) for m in owners[id(weights[n])])]
    names = [n for n in names if weights[n].requires_grad]
    picked = chosen(names, where)
    for glob in skip:
        out = set(chosen(weights, glob))
        picked = [n for n in picked if n not in out]
    if names and first:
        picked = [n for n in picked if n != names[0]]
    if names and last:
        picked = [n for n in picked if n != names[-1]]
    layers = [layer for n in picked for layer in _split(n, weights[n], owners[id(weights[n])][0])]
    for layer in layers:
        layer.last = layer.name == names[-1]
    return layers


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(module)
    return owners


def _suits(module: nn.Module) -> bool:
    groups = getattr(module, "groups", 1)
    if groups > 1 and (getattr(module, "transposed", False) or groups == getattr(module, "in_channels", 0)):
        return False
    return isinstance(module, (*LAYERS, nn.MultiheadAttention)) or type(module).__name__ == "Conv1D"


def _split(name: str, weight: Any, module: nn.Module) -> list[Layer]:
    shape = tuple(weight.shape)
    if name.endswith("in_proj_weight"):
        each = shape[0] // 3
        parts = ((f"{name}[{part}]", slice(i * each, (i + 1) * each)) for i, part in enumerate("qkv"))
        return [Layer(part, weight, (each, *shape[1:]), rows=rows) for part, rows in parts]
    turned = bool(getattr(module, "transposed", False)) or type(module).__name__ == "Conv1D"
    if turned:
        shape = (shape[1], shape[0], *shape[2:])
    return [Layer(name, weight, shape, turned=turned)]
