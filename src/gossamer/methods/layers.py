"""Weights as matrices [outputs, inputs]: the layers that training and pruning work on.

Every weight is read so that a row holds all that one output multiplies, whatever the module: patterns then mean the
same everywhere, n:m groups run along the inputs, and a score meets the inputs and gradients of its own weight.

| module | parameter | read as |
|---|---|---|
| Linear, and its subclasses | [outputs, inputs] | as it is |
| Conv1d, 2d, 3d, grouped too | [outputs, inputs of a group, window] | [outputs, inputs x window] |
| ConvTranspose | [inputs, outputs of a group, window] | [outputs, inputs of a group x window] |
| Conv1D of transformers | [inputs, outputs] | transposed |
| nn.MultiheadAttention | [3 outputs, inputs] | three matrices: q, k, v |
| experts of transformers | [experts, outputs, inputs], or inputs first | one matrix an expert |
| Embedding | [entries, features] | as it is |
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from gossamer.core.tensor import SparseTensor


@dataclass(frozen=True, eq=False)
class Layer:
    """One matrix of weights: all of a parameter, a third of an attention's in-projection, or one expert.

    Examples
    --------
    >>> import torch
    >>> (layer,) = layers_of("weight", torch.nn.ConvTranspose1d(4, 6, 3))
    >>> layer.shape, layer.matrix(layer.dense()).shape
    ((6, 4, 3), torch.Size([6, 12]))
    """

    name: str
    """Of the parameter, with the part where it is one: "attention.in_proj_weight[q]"."""
    parameter: nn.Parameter
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
    def parameter_name(self) -> str:
        """The name of the parameter, without the part."""
        return self.name.partition("[")[0] if self.part is not None else self.name

    def dense(self) -> Tensor:
        """All values of the parameter as an ordinary tensor (a copy only where it is sparse)."""
        value = self.parameter.detach()
        return value.to_dense() if isinstance(value, SparseTensor) else value

    def view(self, tensor: Tensor) -> Tensor:
        """This layer's part of a dense tensor of the parameter's shape: a view."""
        return tensor if self.part is None else tensor[self.part]

    def matrix(self, tensor: Tensor) -> Tensor:
        """The same as [outputs, inputs], contiguous: a copy only where it is stored otherwise."""
        return self._outputs_first(tensor).reshape(self.outputs, self.inputs).contiguous()

    def put(self, target: Tensor, matrix: Tensor) -> None:
        """Write a matrix [outputs, inputs] into a dense tensor of the parameter's shape."""
        part = self._outputs_first(target)
        part.copy_(matrix.view(part.shape))

    def _outputs_first(self, tensor: Tensor) -> Tensor:
        part = self.view(tensor)
        return part.unflatten(0, (self.groups, -1)).transpose(1, 2) if self.inputs_first else part


def layers_of(name: str, module: nn.Module, parameter: nn.Parameter | None = None) -> list[Layer]:
    """The matrices in a parameter of a module, one of those in the table above.

    Parameters
    ----------
    name
        Of the parameter, in the model.
    module
        The module that owns it.
    parameter
        The parameter; by default the module's `weight`.

    Examples
    --------
    >>> import torch
    >>> attention = torch.nn.MultiheadAttention(8, 2)
    >>> [layer.name for layer in layers_of("in_proj_weight", attention, attention.in_proj_weight)]
    ['in_proj_weight[q]', 'in_proj_weight[k]', 'in_proj_weight[v]']
    """
    weight: nn.Parameter = module.weight if parameter is None else parameter  # type: ignore[assignment]
    shape = tuple(weight.shape)
    if is_experts(module, weight):
        first = experts_hold_inputs_first(module, weight)
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


def is_conv1d(module: nn.Module) -> bool:
    """Is it the Conv1D of transformers, a Linear that holds [inputs, outputs]?"""
    return type(module).__name__ == "Conv1D" and not isinstance(module, nn.Conv1d)


def is_experts(module: nn.Module, parameter: Tensor) -> bool:
    """Does a parameter hold one matrix an expert, [experts, ., .]? Modules of transformers 5 are called so."""
    return "Experts" in type(module).__name__ and parameter.dim() == 3


def experts_hold_inputs_first(module: nn.Module, parameter: Tensor) -> bool:
    """Are experts stored as [inputs, outputs]? Modules of transformers say so; else two shapes do.

    An expert maps the width of the model to its own and back: the outputs of `down_proj` are the inputs of the others.
    """
    said, down = getattr(module, "is_transposed", None), getattr(module, "down_proj", None)
    if said is not None or not isinstance(down, Tensor):
        return bool(said)
    others = [p for n, p in module.named_parameters(recurse=False) if n != "down_proj" and p.dim() == 3]
    return any(p.shape[1] == down.shape[2] for p in others) and all(p.shape[2] != down.shape[1] for p in others)
