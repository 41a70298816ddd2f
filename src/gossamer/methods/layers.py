"""Weights as matrices [outputs, inputs]: the layers that training and pruning work on.

Every weight is read as a matrix whose rows are the weights of one output, for every type of module. So patterns have
the same meaning everywhere, n:m groups run along the inputs, and scores get the inputs and gradients of their weight.

| module | parameter | read as |
|---|---|---|
| Linear, and its subclasses | [outputs, inputs] | as it is |
| Conv1d, 2d, 3d, grouped too | [outputs, inputs of a group, window] | [outputs, inputs x window] |
| ConvTranspose | [inputs, outputs of a group, window] | [outputs, inputs of a group x window] |
| Conv1D of transformers | [inputs, outputs] | transposed |
| nn.MultiheadAttention | [3 outputs, inputs] | three matrices: q, k, v |
| experts of transformers | [experts, outputs, inputs], or inputs first | one matrix per expert |
| Embedding | [entries, features] | as it is |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from gossamer.models.experts import experts_hold_inputs_first, is_experts
from gossamer.models.modules import dense_class
from gossamer.models.weights import Weight


@dataclass(eq=False)
class Layer:
    """One matrix of weights: all of a parameter, a third of an attention's in-projection, or one expert.

    Pruning uses it directly; training extends it (`gossamer.train.Layer`).

    Examples
    --------
    >>> import torch
    >>> from gossamer.models.weights import all_weights
    >>> (layer,) = layers_of(all_weights(torch.nn.ConvTranspose1d(4, 6, 3))["weight"])
    >>> layer.shape, layer.matrix(layer.dense()).shape
    ((6, 4, 3), torch.Size([6, 12]))
    """

    name: str
    """Of the parameter, with the part where it is one: "attention.in_proj_weight[q]"."""
    source: Weight
    shape: tuple[int, ...]
    """Outputs, inputs that each output has, window."""
    part: int | slice | None = None
    """Which of the parameter's first dimension; None: all."""
    inputs_first: bool = False
    """The parameter holds inputs before outputs."""
    groups: int = 1
    """Of a convolution: the outputs of each group have inputs of their own."""

    @property
    def outputs(self) -> int:
        """Rows of the matrix: neurons."""
        return self.shape[0]

    @property
    def inputs(self) -> int:
        """Columns of the matrix: the fan-in of a neuron when dense."""
        return prod(self.shape[1:])

    @property
    def size(self) -> int:
        """Number of weights when dense."""
        return prod(self.shape)

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that an optimizer trains."""
        return self.source.parameter

    @property
    def parameter_name(self) -> str:
        """The name of the parameter, without the part."""
        return self.name.partition("[")[0] if self.part is not None else self.name

    def dense(self) -> Tensor:
        """All values of the parameter as an ordinary tensor (a copy if it is stored sparse)."""
        return self.source.dense()

    def view(self, tensor: Tensor) -> Tensor:
        """This layer's part of a dense tensor of the parameter's shape: a view."""
        return tensor if self.part is None else tensor[self.part]

    def matrix(self, tensor: Tensor) -> Tensor:
        """The same as [outputs, inputs], contiguous: a copy if it is stored otherwise."""
        return self._outputs_first(tensor).reshape(self.outputs, self.inputs).contiguous()

    def put(self, target: Tensor, matrix: Tensor) -> None:
        """Write a matrix [outputs, inputs] into a dense tensor of the parameter's shape."""
        part = self._outputs_first(target)
        part.copy_(matrix.view(part.shape))

    def _outputs_first(self, tensor: Tensor) -> Tensor:
        part = self.view(tensor)
        return part.unflatten(0, (self.groups, -1)).transpose(1, 2) if self.inputs_first else part


def layers_of(weight: Weight) -> list[Layer]:
    """The matrices in a weight of a model, one of those in the table above.

    Examples
    --------
    >>> import torch
    >>> from gossamer.models.weights import all_weights
    >>> weight = all_weights(torch.nn.MultiheadAttention(8, 2))["in_proj_weight"]
    >>> [layer.name for layer in layers_of(weight)]
    ['in_proj_weight[q]', 'in_proj_weight[k]', 'in_proj_weight[v]']
    """
    name, shape, module = weight.name, tuple(weight.shape), _multiplier(weight)
    if is_experts(module, shape):
        first = experts_hold_inputs_first(module)
        each = (shape[2], shape[1]) if first else shape[1:]
        return [Layer(f"{name}[{i}]", weight, each, part=i, inputs_first=first) for i in range(shape[0])]
    if isinstance(module, nn.MultiheadAttention) and name.endswith("in_proj_weight"):
        each = (shape[0] // 3, shape[1])
        thirds = [slice(i * each[0], (i + 1) * each[0]) for i in range(3)]
        return [Layer(f"{name}[{x}]", weight, each, part=rows) for x, rows in zip("qkv", thirds, strict=True)]
    groups = getattr(module, "groups", 1)
    if is_conv1d(module):
        return [Layer(name, weight, (shape[1], shape[0]), inputs_first=True)]
    if getattr(module, "transposed", False):
        outputs = (shape[1] * groups, shape[0] // groups, *shape[2:])
        return [Layer(name, weight, outputs, inputs_first=True, groups=groups)]
    return [Layer(name, weight, shape, groups=groups)]


def _multiplier(weight: Weight) -> nn.Module:
    """The module that multiplies with a weight: the linear layer, where it is tied to an embedding."""
    modules = [module for module, _ in weight.places]
    return next((m for m in modules if not is_embedding(m)), modules[0])


def is_embedding(module: nn.Module) -> bool:
    """Does it look up rows of its weight?"""
    return isinstance(module, nn.Embedding | nn.EmbeddingBag)


def is_conv1d(module: nn.Module) -> bool:
    """Is it the Conv1D of transformers, a linear layer with a weight [inputs, outputs]?"""
    return dense_class(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)
